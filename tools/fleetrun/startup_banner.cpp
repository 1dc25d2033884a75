// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/startup_banner.h"

#include <algorithm>

#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

constexpr size_t kKeyWidth = 40;
constexpr size_t kValueWidth = 45;
constexpr size_t kGap = 2;
constexpr size_t kKeptOfLongValue = 41;
constexpr auto kIndent = "    ";

}  // namespace

std::string configuration_block(const Options& options) {
  std::string text = "-----------  Configuration Arguments -----------\n";
  for (const auto& [name, value] : shown_options(options)) text += format("{}: {}\n", name, value);
  return text + "------------------------------------------------";
}

std::string environment_table(const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t key_width = kKeyWidth;
  for (const auto& row : rows) key_width = std::max(key_width, row.first.size());
  const size_t width = key_width + kGap + kValueWidth;

  const auto row = [&](const std::string& key, const std::string& value) {
    const bool fits = value.size() < kValueWidth;
    return format("{}|{:>{}}{:{}}{:^{}}|\n", kIndent, key, key_width, "", kGap,
                  fits ? value : "... " + value.substr(value.size() - kKeptOfLongValue),
                  kValueWidth);
  };
  const auto border = format("{}+{}+", kIndent, std::string(width, '='));
  std::string text = border + "\n" + row("Distributed Envs", "Value");
  text += format("{}+{}+\n", kIndent, std::string(width, '-'));
  for (const auto& [key, value] : rows) text += row(key, value);
  return text + border;
}

}  // namespace fleet::launch
