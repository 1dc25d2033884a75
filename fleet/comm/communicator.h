#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

namespace fleet::comm {

class Carrier;
class ElasticGroup;
class PeerWatch;
class Store;
struct Call;

enum class ReduceOp { kSum, kAvg, kMax };

/// A collective under way. `wait` blocks until it is done and throws what went wrong: which peer,
/// during what, since when. One that is dropped unwaited is waited for, its error lost: keep it.
/// Dropped by an exception it is let go: the peers may never come, and the exception has to be
/// heard.
class Pending {
 public:
  struct State;
  Pending();
  explicit Pending(std::unique_ptr<State> state);
  ~Pending();
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;

  void wait();
  bool done() const;

 private:
  std::unique_ptr<State> state_;
};

struct CommunicatorOptions {
  std::string backend = "gloo";                // or "nccl"
  std::chrono::milliseconds timeout{600'000};  // for every call
  std::string address;                         // this rank's own address; empty: the loopback's
};

/// A group of ranks and what they can do together. All ranks call the same things in the same
/// order; each call takes a few words for what it is, which appear in the error when a peer fails.
///
/// Tensors are float, double, bfloat16, half or int64, contiguous, and are changed in place. A
/// group of one rank does nothing and costs nothing, so that the same program runs alone.
///
///   auto sum = torch::ones({4});
///   comm.all_reduce(sum, ReduceOp::kSum, "a first test");
///   auto pending = comm.all_reduce_async(gradients, ReduceOp::kAvg, "bucket 3");
///   pending.wait();
class Communicator {
 public:
  /// A group of one.
  Communicator();
  /// Joins `size` ranks that meet in `store`; returns when all are connected.
  Communicator(const Store& store, int rank, int size, CommunicatorOptions options = {},
               std::shared_ptr<PeerWatch> watch = nullptr);
  /// The ranks of a group that goes on without those that are gone: they contribute nothing to
  /// sums and averages, and zeros where rows are gathered.
  Communicator(std::shared_ptr<ElasticGroup> group, CommunicatorOptions options,
               std::shared_ptr<PeerWatch> watch);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const CommunicatorOptions& options() const { return options_; }

  Pending all_reduce_async(const torch::Tensor& tensor, ReduceOp op, std::string_view what);
  void all_reduce(const torch::Tensor& tensor, ReduceOp op, std::string_view what);

  /// All of `tensors`, over the same ranks even where some are lost meanwhile.
  Pending all_reduce_together(const std::vector<torch::Tensor>& tensors, ReduceOp op,
                              std::string_view what);

  Pending broadcast_async(const torch::Tensor& tensor, int root, std::string_view what);
  void broadcast(const torch::Tensor& tensor, int root, std::string_view what);

  /// Every rank's `tensor`, stacked by rank: [size, ...].
  torch::Tensor all_gather(const torch::Tensor& tensor, std::string_view what);

  void barrier(std::string_view what);

  /// The same ranks on connections of their own, for calls whose order relative to this group's is
  /// not the same on every rank. All ranks must call it, with the same name; each call makes a new
  /// group.
  std::shared_ptr<Communicator> duplicate(const std::string& name) const;

  /// Null: all ranks are there, or the call fails.
  const std::shared_ptr<ElasticGroup>& elastic() const { return group_; }
  /// The ranks that took part in the last call that was waited for: all, unless the group is
  /// elastic.
  std::vector<int> present() const;
  /// Where this rank stands among them.
  int index() const;

  /// For calls that go by other means: numbers the call, tells the peers of it, and starts it.
  Pending begin(std::unique_ptr<Pending::State> state, std::string_view what,
                const std::vector<torch::Tensor>& tensors);
  /// Who the peers are; nullptr in a group of one.
  const PeerWatch* watch() const { return watch_.get(); }

 private:
  Communicator(const Communicator& other, std::shared_ptr<Carrier> carrier);
  Pending start(Call call, std::string_view what);

  int rank_ = 0;
  int size_ = 1;
  CommunicatorOptions options_;
  std::shared_ptr<Carrier> carrier_;  // null: a group of one
  std::shared_ptr<ElasticGroup> group_;
  std::shared_ptr<PeerWatch> watch_;
};

}  // namespace fleet::comm
