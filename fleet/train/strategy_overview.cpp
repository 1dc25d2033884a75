// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategy_overview.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "fleet/core/options/options.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

constexpr int kKeyWidth = 38;
constexpr int kGap = 2;
constexpr int kValueWidth = 38;
constexpr int kWidth = kKeyWidth + kGap + kValueWidth;

// One printed value for each row: a list has as many as it has elements.
struct Rows {
  std::vector<std::string> operator()(bool on) const { return {on ? "True" : "False"}; }
  std::vector<std::string> operator()(int number) const { return {format("{}", number)}; }
  std::vector<std::string> operator()(int64_t number) const { return {format("{}", number)}; }
  std::vector<std::string> operator()(float number) const { return {python_repr(number)}; }
  std::vector<std::string> operator()(double number) const { return {python_repr(number)}; }
  std::vector<std::string> operator()(const std::string& text) const { return {text}; }
  std::vector<std::string> operator()(const std::vector<std::string>& list) const { return list; }
  std::vector<std::string> operator()(const std::vector<int64_t>& list) const {
    std::vector<std::string> rows;
    rows.reserve(list.size());
    for (const int64_t number : list) rows.push_back(format("{}", number));
    return rows;
  }
};

class Table {
 public:
  void border() { line("+" + std::string(kWidth, '=') + "+"); }
  void rule() { line("+" + std::string(kWidth, '-') + "+"); }
  void centred(std::string_view text) { line(format("|{:^{}}|", text, kWidth)); }
  void row(std::string_view key, std::string_view value) {
    line(format("|{:>{}}{:{}}{:^{}}|", key, kKeyWidth, "", kGap, value, kValueWidth));
  }
  void field(const Field& field, const void* owner) {
    std::string_view key = field.name;
    for (const auto& value : std::visit(Rows{}, field.get(owner))) {
      row(key, value);
      key = "";
    }
  }

  std::string text;

 private:
  void line(const std::string& content) {
    if (!text.empty()) text += '\n';
    text += "    " + content;
  }
};

bool is_shown(const Field& field, const void* owner, const void* defaults) {
  return !field.shown_only_when_set || field.get(owner) != field.get(defaults);
}

// bf16 has the range of fp32: nothing is scaled, whatever these say.
bool is_of_loss_scale(const Field& field) {
  constexpr std::array<std::string_view, 6> kNames = {
      "init_loss_scaling", "incr_every_n_steps", "decr_every_n_nan_or_inf",
      "incr_ratio",        "decr_ratio",         "use_dynamic_loss_scaling"};
  return std::ranges::find(kNames, field.name) != kNames.end();
}

}  // namespace

std::string strategy_overview(const DistributedStrategy& strategy) {
  const OptionsView options(strategy);
  const DistributedStrategy defaults;
  Table table;
  table.border();
  table.centred("");
  table.centred("DistributedStrategy Overview");
  table.centred("");
  for (const Field& field : options.list->fields) {
    const Field* configs = configs_of(field.name);
    if (!configs || !std::get<bool>(field.get(&strategy))) continue;
    table.border();
    table.centred(format("{}=True <-> {}", field.name, configs->name));
    table.rule();
    const OptionsView inner = configs->view(&strategy);
    const OptionsView inner_defaults = configs->view(&defaults);
    const bool is_bf16 = field.name == "amp" && strategy.amp_configs.dtype == "bf16";
    if (is_bf16) table.row("dtype", "bf16, without a loss scale");
    for (const Field& config : inner.list->fields) {
      if (is_bf16 && (is_of_loss_scale(config) || config.name == "dtype")) continue;
      if (is_shown(config, inner.object, inner_defaults.object)) table.field(config, inner.object);
    }
  }
  table.border();
  table.centred("Environment Flags, Communication Flags");
  table.rule();
  for (const Field& field : options.list->fields) {
    if (field.nested() || configs_of(field.name)) continue;
    if (is_shown(field, &strategy, &defaults)) table.field(field, &strategy);
  }
  table.border();
  return table.text;
}

std::string python_repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  // Python changes to an exponent below 1e-4 and from 1e16 on; to_chars goes by length.
  const double size = std::abs(number);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  char buffer[64];
  const auto style = fixed ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number, style).ptr;
  std::string text(buffer, end);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace fleet
