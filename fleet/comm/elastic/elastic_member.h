// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/elastic/elastic_group.h"
#include "fleet/comm/elastic/liveness.h"
#include "fleet/comm/elastic/membership.h"
#include "fleet/comm/transport/elastic_connections.h"

namespace fleet::comm {

/// One rank's part in an elastic group: barriers and exchanges of calls, regrouping after a loss,
/// admission.
///
/// A member is at most one call behind the others: before each call all pass a barrier, and in a
/// new generation those that have completed the call give the others its result. Used by the
/// group's thread only, but for what says otherwise.
class ElasticMember {
 public:
  ElasticMember(const Store& store, int rank, int size, CommunicatorOptions options,
                ElasticOptions elastic);

  /// The first generation, or `is_joining`.
  void form_group();
  /// Completes the call, in as many generations as it takes.
  void run(Collective& call);
  /// Waits until the members admit this process.
  void ask_to_join();
  void finish_admission() { progress_.invited_after = 0; }
  /// Between two calls: others may wait for this rank to regroup.
  void watch();
  /// Processes that ask to join stop waiting.
  void close() { table_.set("closed", "1"); }
  /// After a call that threw.
  void disconnect();

  /// By any thread.
  bool is_joining() const;
  std::vector<int> present() const;
  std::string waits_for() const;
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  using Milliseconds = std::chrono::milliseconds;
  class BarrierWait;

  bool enter_barrier(int64_t number, const Collective& call);
  bool exchange(Collective& call);
  void exchange_tensors(const Collective& call);
  void finish(int64_t number, int64_t generation);
  void admit_requests(const Collective& call);

  bool regroup();
  void regroup_or_throw(Milliseconds waited);
  void check(const Generation& generation) const;
  bool connect(const Generation& generation);
  bool share_result(const Generation& generation);
  void log_change(const std::vector<int>& before, const Generation& now) const;

  bool has_lost_member() { return !liveness_.lost_among(membership_.current().slots()).empty(); }
  void set_waits_for(std::vector<int> ranks);
  void set_present(std::vector<int> ranks);
  void inject_fault(ElasticOptions::FaultPoint moment) const {
    if (elastic_.inject_fault) elastic_.inject_fault(moment, progress_.finished + 1);
  }

  Store table_;
  Liveness liveness_;
  Membership membership_;
  const CommunicatorOptions options_;
  const int rank_;
  const int size_;
  const ElasticOptions elastic_;
  MemberProgress progress_;
  Invitation invitation_;
  ElasticConnections connections_;
  Collective* current_ = nullptr;
  std::vector<torch::Tensor> saved_;  // input of the current call, or result of the last

  mutable std::mutex mutex_;  // guards what follows
  std::vector<int> present_;
  std::vector<int> waits_for_;
  bool is_joining_ = false;
};

}  // namespace fleet::comm
