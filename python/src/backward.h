// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::python {

/// `loss.backward()`, without the GIL. Out of memory in Python's hooks and functions comes out as
/// C++ throws it.
void call_backward(const torch::Tensor& loss);

}  // namespace fleet::python
