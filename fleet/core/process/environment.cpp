// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/environment.h"

#include <cstdlib>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {

bool environment_switch(const char* name, bool otherwise, std::string_view meaning) {
  const char* told = std::getenv(name);
  const std::string_view text = told != nullptr ? told : "";
  if (text.empty()) return otherwise;
  if (text == "0" || text == "1") return text == "1";
  throw UsageError("environment", format("{}='{}' is neither 0 nor 1", name, text), meaning);
}

}  // namespace fleet
