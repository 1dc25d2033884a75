// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fleet {

/// Bytes of the UTF-8 sequence that begins with this byte; 1 for a byte that begins none.
constexpr size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
}

/// What `decode_utf8` returns for a byte that is not UTF-8: no code point.
inline constexpr uint32_t kMalformedUtf8 = 0xFFFFFFFF;

/// The code point at `at`, which moves behind it; a malformed byte counts as one. Overlong forms,
/// surrogates and what lies beyond Unicode are malformed.
constexpr uint32_t decode_utf8(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const uint32_t first = byte(at);
  const size_t length = utf8_length(text[at]);
  const size_t begin = at++;
  if (first < 0x80) return first;
  if (first < 0xC2 || first > 0xF4 || begin + length > text.size()) return kMalformedUtf8;
  uint32_t code = first & (0x7FU >> length);
  for (size_t i = begin + 1; i < begin + length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return kMalformedUtf8;
    code = code << 6U | (byte(i) & 0x3FU);
  }
  const uint32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
  if (code < least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return kMalformedUtf8;
  at = begin + length;
  return code;
}

}  // namespace fleet
