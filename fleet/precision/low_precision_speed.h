// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <torch/types.h>

namespace fleet::precision {

/// How long a matrix product takes on this CPU in `dtype` (bf16 or half), as a multiple of fp32's
/// time: 0.5 is twice as fast. Measured on one core at the first call for each type, in at
/// most about 50 ms; later calls return the same number.
double low_precision_slowdown(torch::ScalarType dtype);

/// A sentence for the log when training on this CPU would be slower in `dtype` than in fp32, and
/// what to do; nothing where it is faster.
std::optional<std::string> low_precision_warning(torch::ScalarType dtype);

namespace detail {
/// The sentence for a given slowdown; `missing` as from compat::missing_instructions.
std::optional<std::string> slowdown_sentence(torch::ScalarType dtype, double slowdown,
                                             const std::string& missing);
}  // namespace detail

}  // namespace fleet::precision
