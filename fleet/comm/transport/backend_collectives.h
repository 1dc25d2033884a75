// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>

#include "fleet/comm/communicator.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace fleet::comm {

using BackendWork = c10::intrusive_ptr<c10d::Work>;

// Start LibTorch's collectives on one tensor.
BackendWork start_all_reduce(c10d::Backend& backend, const torch::Tensor& tensor, ReduceOp op,
                             std::chrono::milliseconds timeout);
BackendWork start_broadcast(c10d::Backend& backend, const torch::Tensor& tensor, int root,
                            std::chrono::milliseconds timeout);
/// Every rank's `row` into `rows`.
BackendWork start_all_gather(c10d::Backend& backend, const torch::Tensor& row,
                             const torch::Tensor& rows, std::chrono::milliseconds timeout);
BackendWork start_barrier(c10d::Backend& backend, std::chrono::milliseconds timeout);

}  // namespace fleet::comm
