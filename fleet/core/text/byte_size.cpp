// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/text/byte_size.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "fleet/core/text/format.h"

namespace fleet {

std::optional<int64_t> byte_size(std::string_view text) {
  constexpr double k = 1000;
  constexpr double ki = 1024;
  constexpr std::array<std::pair<std::string_view, double>, 10> units = {{
      {"", 1},
      {"B", 1},
      {"KB", k},
      {"MB", k * k},
      {"GB", k * k * k},
      {"TB", k * k * k * k},
      {"KiB", ki},
      {"MiB", ki * ki},
      {"GiB", ki * ki * ki},
      {"TiB", ki * ki * ki * ki},
  }};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return {};
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  while (text.starts_with(' ')) text.remove_prefix(1);
  for (const auto& [name, factor] : units) {
    if (text != name) continue;
    const double bytes = std::floor(number * factor);
    if (!(bytes >= 0 && bytes < 9e18)) return {};
    return static_cast<int64_t>(bytes);
  }
  return {};
}

bool lacks_unit(std::string_view text) {
  const auto bytes = byte_size(text).value_or(0);
  return bytes > 0 && bytes < (1 << 20) && text.find_first_not_of("0123456789.eE+-") == text.npos;
}

std::string byte_size_text(int64_t bytes) {
  if (bytes < 1024 && bytes > -1024) return format("{} B", bytes);
  constexpr std::array<const char*, 4> units = {"KiB", "MiB", "GiB", "TiB"};
  double number = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.995 would be printed as 1024.00.
  while (std::abs(number) >= 1023.995 && unit + 1 < units.size()) {
    number /= 1024;
    ++unit;
  }
  return format("{:.2f} {}", number, units[unit]);
}

}  // namespace fleet
