#define FMT_HEADER_ONLY 1
#include "fleet/comm/engine_calls.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace fleet::comm {
namespace {

c10d::ReduceOp engine_op(ReduceOp op) {
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

EngineWork start_reduce(c10d::Backend& engine, const torch::Tensor& tensor, ReduceOp op,
                        std::chrono::milliseconds timeout) {
  std::vector<torch::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = engine_op(op);
  options.timeout = timeout;
  return engine.allreduce(tensors, options);
}

EngineWork start_broadcast(c10d::Backend& engine, const torch::Tensor& tensor, int root,
                           std::chrono::milliseconds timeout) {
  std::vector<torch::Tensor> tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = timeout;
  return engine.broadcast(tensors, options);
}

EngineWork start_gather(c10d::Backend& engine, const torch::Tensor& row, const torch::Tensor& rows,
                        std::chrono::milliseconds timeout) {
  std::vector<std::vector<torch::Tensor>> outputs{rows.unbind(0)};
  std::vector<torch::Tensor> inputs{row};
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  return engine.allgather(outputs, inputs, options);
}

EngineWork start_meeting(c10d::Backend& engine, std::chrono::milliseconds timeout) {
  c10d::BarrierOptions options;
  options.timeout = timeout;
  return engine.barrier(options);
}

}  // namespace fleet::comm
