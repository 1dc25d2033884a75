// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#include "fleet/comm/transport/elastic_connections.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "fleet/comm/transport/backend.h"
#include "fleet/comm/transport/backend_collectives.h"
#include "fleet/core/error.h"

namespace fleet::comm {
namespace {

constexpr std::chrono::milliseconds kConnect{10'000};  // longer: a member is lost

}  // namespace

ElasticConnections::ElasticConnections(CommunicatorOptions options)
    : options_(std::move(options)) {}
ElasticConnections::~ElasticConnections() = default;

bool ElasticConnections::connect(const Store& table, int index, int size) {
  backend_.reset();
  if (size == 1) return true;
  auto quick = options_;
  quick.timeout = std::min(options_.timeout, kConnect);
  try {
    backend_ = make_backend(table, index, size, quick);
  } catch (const Error&) {
    return false;
  }
  return true;
}

void ElasticConnections::drop() { backend_.reset(); }

void ElasticConnections::reduce(const torch::Tensor& tensor, ReduceOp op) {
  if (!backend_) return;
  const auto without_division = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  start_all_reduce(*backend_, tensor, without_division, options_.timeout)->wait();
}

void ElasticConnections::broadcast(const torch::Tensor& tensor, int root) {
  if (!backend_) return;
  start_broadcast(*backend_, tensor, root, options_.timeout)->wait();
}

void ElasticConnections::send(const std::vector<torch::Tensor>& tensors, int to) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<torch::Tensor> one{tensors[i]};
    backend_->send(one, to, static_cast<int>(i))->wait(options_.timeout);
  }
}

std::vector<torch::Tensor> ElasticConnections::receive_like(
    const std::vector<torch::Tensor>& tensors, int from) {
  std::vector<torch::Tensor> received;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<torch::Tensor> one{torch::empty_like(tensors[i])};
    backend_->recv(one, from, static_cast<int>(i))->wait(options_.timeout);
    received.push_back(one[0]);
  }
  return received;
}

}  // namespace fleet::comm
