// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

namespace fleet::comm {

class Transport;
class ElasticGroup;
class PeerWatch;
class Store;
struct Collective;

enum class ReduceOp { kSum, kAvg, kMax };

/// A collective in flight. `wait` blocks until it is complete and throws what went wrong: which
/// peer, in which call, since when. The destructor waits too, and swallows the error: keep the
/// object. During stack unwinding it does not wait: the peers may never arrive, and the exception
/// has to be reported.
class Work {
 public:
  struct State;
  Work();
  explicit Work(std::unique_ptr<State> state);
  ~Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;

  void wait();
  bool done() const;

 private:
  std::unique_ptr<State> state_;
};

/// How a group of ranks is connected.
struct CommunicatorOptions {
  std::string backend = "gloo";                    // or "nccl"
  std::chrono::milliseconds timeout{600'000};      // for every call
  std::string address;                             // this rank's own address; empty: the loopback's
  std::chrono::milliseconds notice_every{10'000};  // log lines of a wait, which name the ranks
};

/// A group of ranks and its collectives. All ranks make the same calls in the same order; each call
/// takes a short description, which appears in the error when a peer fails.
///
/// Tensors are float, double, bfloat16, half or int64, contiguous, and are changed in place. In a
/// group of one rank every call is a no-op, so the same program runs on one rank.
///
///   auto sum = torch::ones({4});
///   comm.all_reduce(sum, ReduceOp::kSum, "a first test");
///   auto work = comm.all_reduce_async(gradients, ReduceOp::kAvg, "bucket 3");
///   work.wait();
class Communicator {
 public:
  /// A group of one.
  Communicator();
  /// Rendezvous of `size` ranks through `store`; returns when all are connected.
  Communicator(const Store& store, int rank, int size, CommunicatorOptions options = {},
               std::shared_ptr<PeerWatch> watch = nullptr);
  /// An elastic group, which continues without lost ranks: they contribute nothing to sums and
  /// averages, and zeros to all_gather.
  Communicator(std::shared_ptr<ElasticGroup> group, CommunicatorOptions options,
               std::shared_ptr<PeerWatch> watch);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const CommunicatorOptions& options() const { return options_; }

  Work all_reduce_async(const torch::Tensor& tensor, ReduceOp op, std::string_view what);
  void all_reduce(const torch::Tensor& tensor, ReduceOp op, std::string_view what);

  /// All of `tensors`, over the same ranks even if some are lost meanwhile.
  Work all_reduce_coalesced(const std::vector<torch::Tensor>& tensors, ReduceOp op,
                            std::string_view what);

  Work broadcast_async(const torch::Tensor& tensor, int root, std::string_view what);
  void broadcast(const torch::Tensor& tensor, int root, std::string_view what);

  /// Every rank's `tensor`, stacked by rank: [size, ...].
  torch::Tensor all_gather(const torch::Tensor& tensor, std::string_view what);

  void barrier(std::string_view what);

  /// The same ranks on separate connections, for calls whose order relative to this group's differs
  /// between ranks. All ranks must call it, with the same name; each call makes a new group.
  std::shared_ptr<Communicator> duplicate(const std::string& name) const;

  /// The same group on the same connections, with another time limit.
  std::shared_ptr<Communicator> with_timeout(std::chrono::milliseconds timeout) const;

  /// Null for a group that is not elastic: a lost rank fails the call.
  const std::shared_ptr<ElasticGroup>& elastic() const { return group_; }
  /// The ranks that took part in the last completed call: all, unless the group is elastic.
  std::vector<int> present() const;
  /// This rank's index among them.
  int index() const;

  /// For collectives of another transport: numbers the call, publishes it to the peers, starts it.
  Work begin(std::unique_ptr<Work::State> state, std::string_view what,
             const std::vector<torch::Tensor>& tensors);
  /// Identities of the peers; nullptr in a group of one.
  const PeerWatch* watch() const { return watch_.get(); }
  /// How many of the group run on this machine, this one included.
  int ranks_on_host() const;

 private:
  Communicator(const Communicator& other, std::shared_ptr<Transport> transport);
  Work start(Collective call, std::string_view what);

  int rank_ = 0;
  int size_ = 1;
  CommunicatorOptions options_;
  std::shared_ptr<Transport> transport_;  // null: a group of one
  std::shared_ptr<ElasticGroup> group_;
  std::shared_ptr<PeerWatch> watch_;
};

}  // namespace fleet::comm
