// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/allocator/budget_amount.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"

namespace fleet::memory {
namespace {

void skip_spaces(std::string_view& text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
}

}  // namespace

std::string BudgetAmount::fix_for(std::string_view text) {
  if (!lacks_unit(text)) {
    return "write a size like 8GiB, a fraction of what this rank may have like 60%, or of what "
           "plain training takes like \"50% of plain\"";
  }
  const auto mebibytes = format("{}MiB", text);
  return parse(format("{}%", text)) ? format(
                                          "write {0}% of what this rank may have, \"{0}% of "
                                          "plain\" training, or a size with its unit like {1}",
                                          text, mebibytes)
                                    : format("write a size with its unit like {}", mebibytes);
}

std::optional<BudgetAmount> BudgetAmount::parse(std::string_view text) {
  const auto percent = text.find('%');
  if (percent == text.npos) {
    const auto bytes = byte_size(text).value_or(0);
    if (bytes <= 0 || lacks_unit(text)) return {};
    return BudgetAmount{.unit = Unit::kBytes, .bytes = bytes};
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + percent, number);
  if (error != std::errc() || end != text.data() + percent) return {};
  const double fraction = number / 100;  // 0 of the smallest numbers
  if (!(fraction > 0 && fraction <= 1)) return {};
  text.remove_prefix(percent + 1);
  skip_spaces(text);
  if (text.empty()) return BudgetAmount{.unit = Unit::kFractionOfLimit, .fraction = fraction};
  if (!text.starts_with("of ")) return {};
  text.remove_prefix(3);
  skip_spaces(text);
  if (text != "plain") return {};
  return BudgetAmount{.unit = Unit::kFractionOfPlain, .fraction = fraction};
}

int64_t BudgetAmount::of(const MemoryLimit& limit, int ranks_on_host) const {
  if (unit == Unit::kBytes) return bytes;
  const auto own = static_cast<double>(limit.bytes / std::max(ranks_on_host, 1));
  return static_cast<int64_t>(unit == Unit::kFractionOfLimit ? own * fraction : own);
}

std::string BudgetAmount::derivation(const MemoryLimit& limit, int ranks_on_host) const {
  if (unit == Unit::kBytes) return byte_size_text(bytes);
  auto text = unit == Unit::kFractionOfLimit ? format("{:g}% of ", 100 * fraction) : std::string();
  text += format("{} ({})", byte_size_text(limit.bytes), limit.source);
  if (ranks_on_host > 1) text += format(" shared by {} ranks", ranks_on_host);
  return text;
}

std::string budget_text(int64_t bytes) {
  constexpr std::array<std::pair<const char*, double>, 4> kUnits = {
      {{"GiB", 1073741824.0}, {"MiB", 1048576.0}, {"KiB", 1024.0}, {"B", 1.0}}};
  for (const auto& [name, unit] : kUnits) {
    const auto number = static_cast<double>(bytes) / unit;
    if (number < 1 && unit > 1) continue;
    if (unit == 1) break;
    return format("{:.2f}{}", std::ceil(number * 100) / 100, name);
  }
  return format("{}B", bytes);
}

}  // namespace fleet::memory
