// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/text/printable.h"

#include <algorithm>
#include <cstdint>

#include "fleet/core/text/format.h"
#include "fleet/core/text/utf8.h"

namespace fleet {
namespace {

bool is_shown(uint32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;        // C0, DEL, C1
  if (code == 0x061c || code == 0x200e || code == 0x200f) return false;  // directional marks
  if (code >= 0x2028 && code <= 0x202e) return false;                    // separators, overrides
  if (code >= 0x2066 && code <= 0x2069) return false;                    // isolates
  return code != 0xfeff;
}

std::string escape(uint32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  return code < 0x100 ? format("\\x{:02x}", code) : format("\\u{:04x}", code);
}

}  // namespace

std::string printable(std::string_view text, size_t most_bytes) {
  std::string shown;
  shown.reserve(std::min(text.size(), most_bytes));
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const auto code = decode_utf8(text, at);
    std::string next;
    if (code == kMalformedUtf8) {
      next = escape(static_cast<uint8_t>(text[begin]));
    } else {
      next = is_shown(code) ? std::string(text.substr(begin, at - begin)) : escape(code);
    }
    if (shown.size() + next.size() > most_bytes) {
      return format("{}... ({} bytes)", shown, text.size());
    }
    shown += next;
  }
  return shown;
}

std::string without_control_characters(std::string_view line) {
  std::string shown;
  shown.reserve(line.size());
  for (size_t at = 0; at < line.size();) {
    const size_t begin = at;
    const auto code = decode_utf8(line, at);
    if (code == kMalformedUtf8) {
      shown += escape(static_cast<uint8_t>(line[begin]));
    } else if (code == '\t' || is_shown(code)) {
      shown += line.substr(begin, at - begin);
    }
  }
  return shown;
}

std::string printable_lines(std::string_view text) {
  std::string shown;
  for (bool is_last = false; !is_last;) {
    const auto end = text.find('\n');
    is_last = end == text.npos;
    shown += printable(text.substr(0, end), text.npos);
    if (is_last) break;
    shown += '\n';
    text.remove_prefix(end + 1);
  }
  return shown;
}

}  // namespace fleet
