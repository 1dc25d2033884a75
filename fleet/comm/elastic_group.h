#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/comm/store.h"

namespace fleet::comm {

/// What the ranks of an elastic group do together. It can be repeated as a whole: all of its
/// tensors are summed over the same ranks.
struct ElasticCall {
  enum class Kind { kReduce, kBroadcast, kMeet, kAdmit };

  Kind kind = Kind::kMeet;
  std::vector<torch::Tensor> tensors = {};
  ReduceOp op = ReduceOp::kSum;
  int root = -1;  // of a broadcast; -1, or one that is gone: the lowest rank that is not new
  std::string what = {};
};

struct ElasticOptions {
  int min_ranks = 1;  // with fewer calls throw RestartNeeded
  /// For tests of what can happen at any moment: called in the group's thread before a call's
  /// meeting, its exchange, its end, and a new generation. Where an exchange is under way, a
  /// std::exception is a connection that breaks; anything else is the end of this rank.
  enum class Moment { kMeeting, kExchange, kEnd, kRegroup };
  std::function<void(Moment, int64_t call)> accident = {};
};

/// A group that survives its ranks. Every rank has a seat for the whole job; one that is gone
/// leaves it empty and contributes nothing, until a new process takes it and is let in.
///
/// Calls are carried out one at a time in a thread of their own. Before each the ranks meet in the
/// store, where a slow rank, which is waited for, can be told from one that is gone. When one is
/// gone, the rest agree on a smaller group (Membership), connect anew and repeat the call that they
/// were in; where one of them had finished it already, the others get its result. So all ranks that
/// are left have the same results of the same calls.
///
/// Costs a copy of a call's tensors, and a few questions to the store per call.
///
///   ElasticGroup group(store, rank, 4, options);
///   group.submit({.kind = ElasticCall::Kind::kReduce, .tensors = {sum}, .what = "a sum"}).get();
class ElasticGroup {
 public:
  /// Joins `size` ranks that meet in `store`, the table in which PeerWatch has its pulse. A process
  /// that comes when they have begun `is_joining`.
  ElasticGroup(const Store& store, int rank, int size, const CommunicatorOptions& options,
               ElasticOptions elastic = {});
  ~ElasticGroup();
  ElasticGroup(const ElasticGroup&) = delete;
  ElasticGroup& operator=(const ElasticGroup&) = delete;

  int rank() const;
  int size() const;

  /// All present ranks submit the same calls in the same order.
  std::shared_future<void> submit(ElasticCall call);

  /// Whether this process has still to `join`; until then it has nobody to call.
  bool is_joining() const;
  /// Waits until the others let this process in, which they do in `admit`. The next calls are those
  /// that the others make after it.
  void join();
  /// Lets those in who ask, and returns their ranks, the same on all. They know nothing: broadcasts
  /// tell them, then `settle`.
  std::vector<int> admit();
  /// Nobody is new any more. All ranks call it.
  void settle();

  /// Those who took part in the last call that this rank has finished, the same on all.
  std::vector<int> present() const;

  /// After the last call: who asks to be let in need not wait any longer.
  void leave();
  /// Ends the thread, or lets it go where it hangs: the process is about to end.
  void rest();

 private:
  struct Job;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace fleet::comm
