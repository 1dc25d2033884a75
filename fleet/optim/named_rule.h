// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"

namespace fleet::optim {

/// A variant of an update rule under the name of the library that has it.
template <typename Rule>
struct NamedRule {
  std::string_view name;
  Rule rule;
};

template <typename Rules>
std::vector<std::string_view> names_of(const Rules& rules) {
  std::vector<std::string_view> names;
  names.reserve(rules.size());
  for (const auto& item : rules) names.push_back(item.name);
  return names;
}

/// `optimizer` and `page` are for the error that an unknown name gets.
template <typename Rules>
auto rule_named(const Rules& rules, std::string_view name, std::string_view optimizer,
                std::string_view page) {
  for (const auto& item : rules) {
    if (item.name == name) return item.rule;
  }
  const auto names = names_of(rules);
  const std::vector<std::string> known(names.begin(), names.end());
  throw UsageError(optimizer, format("there is no rule '{}'{}", name, did_you_mean(name, known)),
                   format("{} lists them", page));
}

}  // namespace fleet::optim
