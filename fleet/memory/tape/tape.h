// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "fleet/core/torch/interception.h"
#include "fleet/memory/tape/op_record.h"
#include "fleet/memory/tape/retention.h"
#include "fleet/memory/tape/saved_slot.h"
#include "fleet/memory/tape/tape_policy.h"
#include "fleet/memory/tape/tape_report.h"
#include "fleet/memory/tape/tape_values.h"
#include "fleet/memory/tape/write_undo.h"

namespace fleet::memory {

class Profiler;
class ProfileWriter;
class ReplayObserver;
struct Offload;

/// Records the ops of one forward as the user calls them, with what autograd saves while they run.
/// What becomes of that is decided by its Retention. Lives on the forward's thread, as long as the
/// forward; what it leaves behind is owned by what autograd saved.
class Tape final : public compat::OpObserver, public compat::SaveObserver {
 public:
  /// With a profiler, the step is measured too; with `offload`, values are offloaded.
  explicit Tape(TapePolicy& policy, std::shared_ptr<Profiler> profiler = nullptr,
                const Offload* offload = nullptr);
  ~Tape() override;  // calls end()
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// The forward is over. What autograd saved can be recomputed from here on; if this throws, it
  /// cannot.
  void end();

  /// The one that records this thread's ops; null for none.
  static Tape* current();

  bool decomposes(const c10::OperatorHandle& op) override;
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;
  std::unique_ptr<compat::SavedTensor> save(const torch::Tensor& tensor) override;

  /// `fleet::checkpoint(x, name)` was called.
  void checkpoint(std::string_view name, const torch::Tensor& x);
  /// A call of `fleet::recompute`, recomputed whatever the policy says. They nest, and no segment
  /// ends inside.
  void open_region();
  void close_region(TapePolicy::Treatment treatment);

  int next_op() const { return retention_.next_op(); }
  int segment() const { return retention_.segment(); }
  /// Saved by autograd in this segment, in storages made in it.
  int64_t segment_bytes() const { return retention_.segment_bytes(); }
  /// How many storages, made in this segment, the user's program still holds: what would cross a
  /// cut here. Counts no further than `limit` + 1.
  int live_in_segment(int limit) const { return retention_.live_in_segment(limit); }
  const TapeReport& report() const { return report_; }

  /// Is told of what backward recomputes; a profiler is told instead if there is one.
  void set_replay_observer(std::shared_ptr<ReplayObserver> observer) {
    replays_ = std::move(observer);
  }
  /// From now on, what was there before the forward is copied before an op writes to it.
  void set_undo(WriteUndo* undo) { undo_ = undo; }
  /// Storages that ops have read and that were there before the forward: parameters, buffers, data.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_from_outside() const;

 private:
  void add_input(OpRecord& record, const torch::Tensor& tensor, int argument, int element);
  void read_arguments(OpRecord& record, const torch::jit::Stack& stack);
  void copy_before_write(const OpRecord& record);
  void accept_write(const OpRecord& record) const;
  bool is_made_outside(int value) const;
  void keep_inputs(OpRecord& record);
  void note_writes(const OpRecord& record);
  void read_results(OpRecord& record, const torch::jit::Stack& stack);
  void release_inputs(OpRecord& record) const;

  TapePolicy& policy_;
  TapeReport report_;
  TapeValues values_;
  std::unique_ptr<ProfileWriter> profile_;
  Retention retention_;
  WriteUndo* undo_ = nullptr;
  std::shared_ptr<ReplayObserver> replays_;
  // Of the op that runs:
  std::shared_ptr<OpRecord> running_;
  std::vector<torch::Tensor> arguments_;  // by input
  std::vector<std::shared_ptr<SavedSlot>> saved_now_;
};

/// Records this thread's ops while it lives.
class TapeScope {
 public:
  explicit TapeScope(TapePolicy& policy, std::shared_ptr<Profiler> profiler = nullptr,
                     const Offload* offload = nullptr)
      : tape_(policy, std::move(profiler), offload), observers_(&tape_, &tape_) {}
  TapeScope(TapePolicy& policy, const Offload* offload) : TapeScope(policy, nullptr, offload) {}
  Tape& tape() { return tape_; }

 private:
  Tape tape_;
  compat::ObserverScope observers_;
  compat::InterceptScope intercept_;
};

}  // namespace fleet::memory
