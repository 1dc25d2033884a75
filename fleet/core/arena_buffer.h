// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace fleet {

/// Elements, rounded up so that what follows them in a buffer is aligned to 64 bytes.
int64_t aligned_elements(int64_t elements, int64_t element_size);

/// Zeros in huge pages where the system gives them on request: passes over several buffers at once
/// miss the TLB less, worth some 3 % of an update.
torch::Tensor zeroed_buffer(int64_t numel, const torch::TensorOptions& options);

/// A view of `buffer` with the parameter's own strides where they are dense (channels-last stays
/// so).
torch::Tensor view_of_buffer(const torch::Tensor& buffer, int64_t offset,
                             const torch::Tensor& like);
/// Likewise, but no view to autograd: torch's zero_grad() detaches gradients in place, which views
/// refuse.
torch::Tensor gradient_view_of_buffer(const torch::Tensor& buffer, int64_t offset,
                                      const torch::Tensor& like);

}  // namespace fleet
