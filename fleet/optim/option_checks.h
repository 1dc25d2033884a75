// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fleet::optim {

/// Throws one UsageError for all of `problems`, if any; optimizers check their options with it.
void throw_if_any(std::string_view optimizer, const std::vector<std::string>& problems);
/// Adds a problem unless `value` is in [0, 1), or at least 0.
void require_unit_interval(std::vector<std::string>& problems, std::string_view what, double value);
void require_not_negative(std::vector<std::string>& problems, std::string_view what, double value);

}  // namespace fleet::optim
