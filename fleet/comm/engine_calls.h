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

using EngineWork = c10::intrusive_ptr<c10d::Work>;

// The engine's collectives on one tensor, started.
EngineWork start_reduce(c10d::Backend& engine, const torch::Tensor& tensor, ReduceOp op,
                        std::chrono::milliseconds timeout);
EngineWork start_broadcast(c10d::Backend& engine, const torch::Tensor& tensor, int root,
                           std::chrono::milliseconds timeout);
/// Every rank's `row` into `rows`.
EngineWork start_gather(c10d::Backend& engine, const torch::Tensor& row, const torch::Tensor& rows,
                        std::chrono::milliseconds timeout);
EngineWork start_meeting(c10d::Backend& engine, std::chrono::milliseconds timeout);

}  // namespace fleet::comm
