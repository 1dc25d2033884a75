// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#include "fleet/comm/transport/backend_collectives.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace fleet::comm {
namespace {

c10d::ReduceOp backend_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    default:
      return c10d::ReduceOp::SUM;
  }
}

}  // namespace

BackendWork start_all_reduce(c10d::Backend& backend, const torch::Tensor& tensor, ReduceOp op,
                             std::chrono::milliseconds timeout) {
  std::vector<torch::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = backend_op(op);
  options.timeout = timeout;
  return backend.allreduce(tensors, options);
}

BackendWork start_broadcast(c10d::Backend& backend, const torch::Tensor& tensor, int root,
                            std::chrono::milliseconds timeout) {
  std::vector<torch::Tensor> tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = timeout;
  return backend.broadcast(tensors, options);
}

BackendWork start_all_gather(c10d::Backend& backend, const torch::Tensor& row,
                             const torch::Tensor& rows, std::chrono::milliseconds timeout) {
  std::vector<std::vector<torch::Tensor>> outputs{rows.unbind(0)};
  std::vector<torch::Tensor> inputs{row};
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  return backend.allgather(outputs, inputs, options);
}

BackendWork start_barrier(c10d::Backend& backend, std::chrono::milliseconds timeout) {
  c10d::BarrierOptions options;
  options.timeout = timeout;
  return backend.barrier(options);
}

}  // namespace fleet::comm
