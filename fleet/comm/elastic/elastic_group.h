// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/transport/collective.h"

namespace fleet::comm {

struct ElasticOptions {
  int min_ranks = 1;  // with fewer, calls throw RestartNeeded
  /// Fault injection for tests: called in the group's thread before a call's barrier, its exchange,
  /// its end, and a new generation. During an exchange, throwing a std::exception simulates a
  /// broken connection; anything else ends this rank.
  enum class FaultPoint { kBarrier, kExchange, kEnd, kRegroup };
  std::function<void(FaultPoint, int64_t call)> inject_fault = {};
};

/// A group that continues when ranks are lost. Every rank has a slot for the whole job; the slot of
/// a lost rank is empty and contributes nothing, until a new process takes it and is admitted.
///
/// Collectives run one at a time in a thread of their own. Before each one the ranks pass a barrier
/// in the store, which tells a slow rank, which is waited for, from a lost one. When a rank is
/// lost, the others agree on a smaller group (Membership), reconnect and repeat the collective; if
/// one of them had completed it already, the others receive its result. So all remaining ranks have
/// the same results of the same calls.
///
/// Costs a copy of a call's tensors, and a few store requests per call.
///
///   ElasticGroup group(store, rank, 4, options);
///   group.submit({.kind = Collective::Kind::kAllReduce, .tensors = {sum}, .what = "a sum"}).get();
class ElasticGroup {
 public:
  /// Rendezvous of `size` ranks through `store`, the table with PeerWatch's heartbeats. A process
  /// that starts after the first generation `is_joining`.
  ElasticGroup(const Store& store, int rank, int size, const CommunicatorOptions& options,
               ElasticOptions elastic = {});
  ~ElasticGroup();
  ElasticGroup(const ElasticGroup&) = delete;
  ElasticGroup& operator=(const ElasticGroup&) = delete;

  int rank() const;
  int size() const;

  /// All present ranks submit the same calls in the same order.
  std::shared_future<void> submit(Collective call);

  /// Whether this process has still to `join`; until then its calls are no-ops.
  bool is_joining() const;
  /// Waits until the members admit this process, in `admit`. Its next call is the one that the
  /// members make after that.
  void join();
  /// Admits the processes that ask to join and returns their ranks, equal on all members. They have
  /// no training state: broadcast it to them, then call `finish_admission`.
  std::vector<int> admit();
  /// The admitted ranks are members like any other now. All ranks call it.
  void finish_admission();

  /// The ranks that took part in the last call that this rank completed, equal on all.
  std::vector<int> present() const;
  /// The ranks that the call under way waits for, for a log.
  std::string waits_for() const;

  /// After the last call: processes that ask to join stop waiting.
  void leave();
  /// Ends the thread, or detaches it if it blocks: the process is about to end.
  void stop();

 private:
  struct Job;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace fleet::comm
