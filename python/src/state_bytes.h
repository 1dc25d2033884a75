// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "bindings.h"

namespace fleet::python {

// All with the GIL. `name` is for errors.

/// What an object's state_dict() returns, as torch.save writes it.
torch::Tensor state_bytes(const py::object& object);

/// Throws where torch.load does not read it with weights_only=True: a snapshot may hold tensors,
/// numbers, texts and containers of them, and runs no code.
void check_state_bytes(const std::string& name, const torch::Tensor& bytes);

/// Its load_state_dict() takes it.
void set_state_bytes(const std::string& name, const py::object& object, const torch::Tensor& bytes);

}  // namespace fleet::python
