// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/options/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "fleet/core/text/format.h"

namespace fleet {
namespace {

template <typename LeafType, typename Options>
void collect(Options options, const std::string& prefix, std::vector<LeafType>& out) {
  for (const Field& field : options.list->fields) {
    std::string path = prefix + std::string(field.name);
    if (!field.nested()) {
      out.push_back({std::move(path), &field, options.object});
    } else if constexpr (std::is_same_v<Options, OptionsRef>) {
      collect(field.ref(options.object), path + ".", out);
    } else {
      collect(field.view(options.object), path + ".", out);
    }
  }
}

template <typename Element, typename Print>
std::string joined(const std::vector<Element>& list, std::string_view between, Print print) {
  std::string text;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) text += between;
    text += print(list[i]);
  }
  return text;
}

// Compared as double, which is exact for every bound that a field has.
std::string outside(const Field& field, double number, const std::string& printed) {
  const Range& range = field.range;
  const bool inside = std::isfinite(number) &&
                      (range.includes_low ? number >= range.low : number > range.low) &&
                      (range.includes_high ? number <= range.high : number < range.high);
  if (inside) return "";
  if (!std::isfinite(number)) return format("{} is not a finite number", printed);
  return format("{} is out of range: it must be {}", printed, limits_text(field));
}

template <typename Number>
std::string beyond(std::string_view text) {
  using Limits = std::numeric_limits<Number>;
  Number value{};
  const auto* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc::result_out_of_range || end != last) return "";
  if constexpr (Limits::is_integer) {
    return text.starts_with('-') ? format("{} is too small: the least is {}", text, Limits::min())
                                 : format("{} is too large: the most is {}", text, Limits::max());
  } else {
    return format("{} is out of range: numbers are 0, or from {:.4g} to {:.4g} in size", text,
                  Limits::min(), Limits::max());
  }
}

}  // namespace

std::vector<Leaf> leaves(OptionsRef options) {
  std::vector<Leaf> out;
  collect(options, "", out);
  return out;
}

std::vector<LeafView> leaves(OptionsView options) {
  std::vector<LeafView> out;
  collect(options, "", out);
  return out;
}

std::string_view expected(const FieldValue& like) {
  struct Names {
    std::string_view operator()(bool) const { return "true or false"; }
    std::string_view operator()(int) const { return "a whole number below 2^31"; }
    std::string_view operator()(int64_t) const { return "a whole number"; }
    std::string_view operator()(float) const { return "a number"; }
    std::string_view operator()(double) const { return "a number"; }
    std::string_view operator()(const std::string&) const { return "a text"; }
    std::string_view operator()(const std::vector<std::string>&) const { return "a list of texts"; }
    std::string_view operator()(const std::vector<int64_t>&) const {
      return "a list of whole numbers";
    }
  };
  return std::visit(Names{}, like);
}

std::string beyond_type(const FieldValue& like, std::string_view number) {
  if (std::holds_alternative<int>(like)) return beyond<int>(number);
  if (std::holds_alternative<int64_t>(like)) return beyond<int64_t>(number);
  if (std::holds_alternative<float>(like)) return beyond<float>(number);
  if (std::holds_alternative<double>(like)) return beyond<double>(number);
  return "";
}

std::string to_text(const FieldValue& value) {
  struct Print {
    std::string operator()(bool on) const { return on ? "true" : "false"; }
    std::string operator()(int number) const { return format("{}", number); }
    std::string operator()(int64_t number) const { return format("{}", number); }
    std::string operator()(float number) const { return format("{}", number); }
    std::string operator()(double number) const { return format("{}", number); }
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(const std::vector<std::string>& list) const {
      return joined(list, ",", [](const std::string& text) { return text; });
    }
    std::string operator()(const std::vector<int64_t>& list) const {
      return joined(list, ",", [](int64_t number) { return format("{}", number); });
    }
  };
  return std::visit(Print{}, value);
}

std::string limits_text(const Field& field) {
  if (!field.words.empty()) {
    return joined(field.words, " or ", [](std::string_view word) { return std::string(word); });
  }
  const Range& range = field.range;
  std::string text;
  if (std::isfinite(range.low)) {
    text = format("{} {}", range.includes_low ? "at least" : "above", format("{}", range.low));
  }
  if (std::isfinite(range.high)) {
    text += format("{}{} {}", text.empty() ? "" : " and ",
                   range.includes_high ? "at most" : "below", format("{}", range.high));
  }
  return text;
}

std::string problem_with(const Field& field, const FieldValue& value) {
  struct Check {
    const Field& field;

    std::string operator()(bool) const { return ""; }
    std::string operator()(int number) const {
      return outside(field, number, format("{}", number));
    }
    std::string operator()(int64_t number) const {
      return outside(field, static_cast<double>(number), format("{}", number));
    }
    std::string operator()(float number) const {
      return outside(field, number, format("{}", number));
    }
    std::string operator()(double number) const {
      return outside(field, number, format("{}", number));
    }
    std::string operator()(const std::string& text) const {
      if (field.words.empty() || std::ranges::find(field.words, text) != field.words.end()) {
        return "";
      }
      return format("'{}' is not known: it must be {}", text, limits_text(field));
    }
    std::string operator()(const std::vector<std::string>& list) const {
      if (std::ranges::find(list, "") != list.end()) return "a name in the list is empty";
      return "";
    }
    std::string operator()(const std::vector<int64_t>& list) const {
      for (const int64_t number : list) {
        if (auto problem = (*this)(number); !problem.empty()) return problem;
      }
      return "";
    }
  };
  return std::visit(Check{field}, value);
}

std::vector<std::string> out_of_limits(OptionsView options) {
  std::vector<std::string> problems;
  for (const LeafView& leaf : leaves(options)) {
    const std::string problem = problem_with(*leaf.field, leaf.value());
    if (!problem.empty()) problems.push_back(format("{}: {}", leaf.path, problem));
  }
  return problems;
}

}  // namespace fleet
