// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/comm/rendezvous/store/store.h"

namespace c10d {
class Backend;
}

namespace fleet::comm {

/// The connections of one generation of an elastic group. Calls throw what LibTorch throws when a
/// connection breaks or times out; in a group of one there are none, and calls are no-ops.
///
///   ElasticConnections connections(options);
///   if (connections.connect(table, index, size)) connections.reduce(tensor, ReduceOp::kSum);
class ElasticConnections {
 public:
  explicit ElasticConnections(CommunicatorOptions options);
  ~ElasticConnections();
  ElasticConnections(const ElasticConnections&) = delete;
  ElasticConnections& operator=(const ElasticConnections&) = delete;

  /// Connects to the other members, after their barrier; false when one of them is lost meanwhile.
  /// `table`: for this generation only.
  bool connect(const Store& table, int index, int size);
  /// Closes the connections; pending calls of the other members then fail.
  void drop();

  /// kAvg sums: the caller divides.
  void reduce(const torch::Tensor& tensor, ReduceOp op);
  void broadcast(const torch::Tensor& tensor, int root);
  void send(const std::vector<torch::Tensor>& tensors, int to);
  std::vector<torch::Tensor> receive_like(const std::vector<torch::Tensor>& tensors, int from);

 private:
  CommunicatorOptions options_;
  c10::intrusive_ptr<c10d::Backend> backend_;  // null: a group of one
};

}  // namespace fleet::comm
