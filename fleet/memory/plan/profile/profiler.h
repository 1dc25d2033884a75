// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "fleet/memory/allocator/memory_counter.h"
#include "fleet/memory/offload/offload_file.h"
#include "fleet/memory/plan/profile/replay_times.h"
#include "fleet/memory/plan/profile/step_profile.h"
#include "fleet/memory/replay/replay.h"
#include "fleet/memory/tape/kept_value.h"

namespace fleet::memory {

/// Measures a step: pass it to a Tape, and call `finish` after backward. What the step takes to
/// evict values, and to recompute them, is left out of the times of ops and of the whole.
class Profiler final : public ReplayObserver {
 public:
  explicit Profiler(MemoryCounter& counter);
  /// Bytes that are queued for this file, or were prefetched from it, are not counted for the step.
  void exclude_file(std::shared_ptr<const OffloadFile> file) { file_ = std::move(file); }

  // Called by the tape, in this order for every op.
  void op_begins(int op);
  void op_returned();
  StepProfile::Op& op() { return profile_.ops.back(); }
  int last_op() const { return static_cast<int>(profile_.ops.size()) - 1; }
  int add_block(const StepProfile::Block& block);
  void kept(int block, const std::shared_ptr<KeptValue>& kept);
  StepProfile::Block& block(int number) { return profile_.blocks[static_cast<size_t>(number)]; }
  void checkpoint_before(int op) { profile_.checkpoints.push_back(op); }
  void forward_ended();
  /// Between two backwards of the graph: what happens there is no part of the step.
  void pause();
  /// Values were evicted in the middle of an op, of a backward node, or of a replay.
  void evicted(int64_t bytes, double seconds);

  // Called by saved tensors and replays in backward.
  void unpacking();
  // `handed_out`: bytes that only the backward node holds now.
  void unpacked(int op, int64_t handed_out);
  void replayed(int op, double seconds, bool is_whole) override;
  void recomputed(double overhead) override;

  /// After backward.
  StepProfile finish();

 private:
  using Clock = std::chrono::steady_clock;
  int64_t held_bytes();
  void close_node();
  void close_op();
  void estimate_dropouts();

  MemoryCounter& counter_;
  std::shared_ptr<const OffloadFile> file_;
  StepProfile profile_;
  std::vector<std::pair<int, std::weak_ptr<KeptValue>>> kept_;  // with block
  Clock::time_point began_, op_began_, node_began_, unpacking_began_;
  bool in_forward_ = true;
  ReplayTimes replays_;
  bool is_paused_ = false;
  bool is_unpacking_ = false;        // a replay may run
  bool had_inner_backward_ = false;  // since the last op: gradients taken inside the forward
  double left_out_of_forward_ = 0, left_out_of_op_ = 0, left_out_of_node_ = 0;  // seconds
  int64_t op_live_ = 0, node_live_ = 0;
  int node_ = -1;  // the op whose backward runs
  int64_t node_handed_out_ = 0;
};

}  // namespace fleet::memory
