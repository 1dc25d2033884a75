// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/option_checks.h"

#include <cmath>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::optim {

void throw_if_any(std::string_view optimizer, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw UsageError::all("optim", format("these options of {} are not valid:", optimizer), problems);
}

void require_unit_interval(std::vector<std::string>& problems, std::string_view what,
                           double value) {
  if (!(value >= 0 && value < 1)) {
    problems.push_back(format("{} {} is outside [0, 1)", what, value));
  }
}

void require_not_negative(std::vector<std::string>& problems, std::string_view what, double value) {
  if (!(std::isfinite(value) && value >= 0)) {
    problems.push_back(
        format("{} {} is {}", what, value, value < 0 ? "negative" : "not a finite number"));
  }
}

}  // namespace fleet::optim
