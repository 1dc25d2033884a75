// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace fleet::tool {

/// One row of `fleet doctor`.
struct Finding {
  enum class State { kOk, kAdvice, kProblem };

  State state = State::kOk;
  std::string name;      // "descriptors"
  std::string found;     // with its values
  std::string fix = {};  // what to change; empty where nothing is to be
};

std::string_view name_of(Finding::State state);

/// One line each, and one more for what to change. Texts come from the system and from other hosts:
/// control characters are escaped.
std::string table_of(const std::vector<Finding>& findings);

/// {"problems": 0, "rows": [{"name": ..., "state": "ok", "found": ..., "fix": ...}, ...]}
std::string json_of(const std::vector<Finding>& findings);

int problems_in(const std::vector<Finding>& findings);

}  // namespace fleet::tool
