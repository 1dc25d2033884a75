#define FMT_HEADER_ONLY 1
#include "fleet/comm/elastic_engine.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "fleet/comm/backend.h"
#include "fleet/comm/engine_calls.h"
#include "fleet/core/error.h"

namespace fleet::comm {
namespace {

constexpr std::chrono::milliseconds kConnect{10'000};  // longer means that one is gone

}  // namespace

ElasticEngine::ElasticEngine(CommunicatorOptions options) : options_(std::move(options)) {}
ElasticEngine::~ElasticEngine() = default;

bool ElasticEngine::connect(const Store& place, int index, int size) {
  backend_.reset();
  if (size == 1) return true;
  auto quick = options_;
  quick.timeout = std::min(options_.timeout, kConnect);
  try {
    backend_ = make_backend(place, index, size, quick);
  } catch (const Error&) {
    return false;
  }
  return true;
}

void ElasticEngine::drop() { backend_.reset(); }

void ElasticEngine::reduce(const torch::Tensor& tensor, ReduceOp op) {
  if (!backend_) return;
  const auto without_division = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  start_reduce(*backend_, tensor, without_division, options_.timeout)->wait();
}

void ElasticEngine::broadcast(const torch::Tensor& tensor, int root) {
  if (!backend_) return;
  start_broadcast(*backend_, tensor, root, options_.timeout)->wait();
}

void ElasticEngine::send(const std::vector<torch::Tensor>& tensors, int to) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<torch::Tensor> one{tensors[i]};
    backend_->send(one, to, static_cast<int>(i))->wait(options_.timeout);
  }
}

std::vector<torch::Tensor> ElasticEngine::receive_like(const std::vector<torch::Tensor>& tensors,
                                                       int from) {
  std::vector<torch::Tensor> received;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<torch::Tensor> one{torch::empty_like(tensors[i])};
    backend_->recv(one, from, static_cast<int>(i))->wait(options_.timeout);
    received.push_back(one[0]);
  }
  return received;
}

}  // namespace fleet::comm
