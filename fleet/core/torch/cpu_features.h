// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <torch/types.h>

#include "fleet/core/torch/torch_version.h"

namespace fleet::compat {

/// What this CPU lacks to multiply fast in bf16 or half: "AVX-512 BF16 or AMX". Empty when it lacks
/// nothing, or is of a kind that is not known here.
std::string missing_instructions(torch::ScalarType dtype);

}  // namespace fleet::compat
