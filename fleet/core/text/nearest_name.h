// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fleet {

/// The names that `wanted` was probably meant to be, best first: small edit distance, or one is
/// part of the other. Empty when nothing is near.
std::vector<std::string> nearest_names(std::string_view wanted,
                                       const std::vector<std::string>& known, size_t most = 3);

/// " (did you mean 'k_steps'?)", or "" when nothing is near: to be appended to an error.
std::string did_you_mean(std::string_view wanted, const std::vector<std::string>& known);

}  // namespace fleet
