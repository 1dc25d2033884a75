#pragma once

#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/comm/store.h"

namespace c10d {
class Backend;
}

namespace fleet::comm {

/// The connections of one generation of an elastic group. Calls throw what the engine throws when a
/// connection breaks or the time is up; without connections, in a group of one, they do nothing.
///
///   ElasticEngine engine(options);
///   if (engine.connect(place, index, size)) engine.reduce(tensor, ReduceOp::kSum);
class ElasticEngine {
 public:
  explicit ElasticEngine(CommunicatorOptions options);
  ~ElasticEngine();
  ElasticEngine(const ElasticEngine&) = delete;
  ElasticEngine& operator=(const ElasticEngine&) = delete;

  /// Connects to the others, who have just met; false when one of them is gone meanwhile. `place`:
  /// a table for this generation alone.
  bool connect(const Store& place, int index, int size);
  /// Breaks the connections, which the others notice.
  void drop();

  /// An average is a sum here.
  void reduce(const torch::Tensor& tensor, ReduceOp op);
  void broadcast(const torch::Tensor& tensor, int root);
  void send(const std::vector<torch::Tensor>& tensors, int to);
  std::vector<torch::Tensor> receive_like(const std::vector<torch::Tensor>& tensors, int from);

 private:
  CommunicatorOptions options_;
  c10::intrusive_ptr<c10d::Backend> backend_;  // null: alone
};

}  // namespace fleet::comm
