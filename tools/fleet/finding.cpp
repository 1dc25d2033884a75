// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/finding.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::tool {

std::string_view name_of(Finding::State state) {
  switch (state) {
    case Finding::State::kOk:
      return "ok";
    case Finding::State::kAdvice:
      return "advice";
    case Finding::State::kProblem:
      return "problem";
  }
  return "";
}

std::string table_of(const std::vector<Finding>& findings) {
  constexpr size_t kStateWidth = 9, kLongest = 2000;
  size_t width = 0;
  for (const auto& finding : findings) width = std::max(width, finding.name.size() + 2);
  std::string text;
  for (const auto& finding : findings) {
    text += format("{:<{}}{:<{}}{}\n", name_of(finding.state), kStateWidth, finding.name, width,
                   printable(finding.found, kLongest));
    if (!finding.fix.empty()) {
      text += format("{:<{}}fix: {}\n", "", kStateWidth + width, printable(finding.fix, kLongest));
    }
  }
  return text;
}

std::string json_of(const std::vector<Finding>& findings) {
  using Json = nlohmann::ordered_json;
  auto rows = Json::array();
  for (const auto& finding : findings) {
    rows.push_back({{"name", finding.name},
                    {"state", std::string(name_of(finding.state))},
                    {"found", finding.found},
                    {"fix", finding.fix}});
  }
  const Json all{{"problems", problems_in(findings)}, {"rows", std::move(rows)}};
  // A name in a path need not be UTF-8, and JSON has to be.
  return all.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

int problems_in(const std::vector<Finding>& findings) {
  return static_cast<int>(std::ranges::count(findings, Finding::State::kProblem, &Finding::state));
}

}  // namespace fleet::tool
