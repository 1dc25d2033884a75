// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "fleet/core/generator_state.h"
#include "fleet/core/model_handle.h"
#include "fleet/optim/passes/gradient_merge.h"
#include "fleet/precision/buffer_backup.h"

namespace fleet {

/// Continues where memory is short: the window is dropped, buffers and generators are restored, and
/// the whole batch runs again in micro-batches of half the size. What comes out is what those had
/// given from the start, bit for bit on one rank. The size is kept for the calls that follow.
///
/// At work where tensors come from an allocator that throws c10::OutOfMemoryError: under a budget
/// of BudgetAllocator, or off the CPU. Elsewhere it does nothing, and costs nothing.
///
/// Ranks split on their own: before the last backward no rank has sent anything. A last backward
/// that sends while it runs cannot be taken back, so micro-batches larger than any that succeeded
/// send afterwards.
class AutoMicroBatch {
 public:
  using Ranges = std::vector<optim::GradientMerge::Range>;

  AutoMicroBatch(const ModelHandle& model, torch::Device device, int ranks);

  /// As gradient merge says, or finer when that was too much before, or is quicker.
  Ranges split(const optim::GradientMerge& merge, int64_t samples) const;
  /// As gradient merge says, or finer when that was too much before: the largest such size.
  int64_t largest_size(const optim::GradientMerge& merge, int64_t samples) const;

  /// Before the first micro-batch.
  void open_window();
  /// Whether memory that is short in this window can be met by smaller micro-batches.
  bool can_shrink() const { return !generators_.empty(); }
  /// Whether these may be split further where memory is short: one has more than one sample, they
  /// are not too many, and no batch norm would see other batches than the user asked for; with
  /// `merge_was_asked_for` it sees micro-batches anyway.
  bool can_split(const Ranges& ranges, bool merge_was_asked_for) const;
  /// Why not, for an error; empty: they may be, or hold one sample each.
  std::string why_not_split(const Ranges& ranges, bool merge_was_asked_for) const;
  /// Whether a backward over so many samples may send gradients while it runs.
  bool may_overlap(int64_t samples) const;
  /// Buffers and generators to where they were when the window was opened.
  void restore();
  /// Halves them; an Error when they hold one sample each.
  void shrink(const Ranges& failed, const c10::OutOfMemoryError& error);
  /// From now on in micro-batches of at most so many samples, because that is quicker.
  void prefer(int64_t samples);
  /// How fine batches are split, for a snapshot: other sizes give other roundings.
  struct State {
    int64_t limit = 0;      // samples; 0: none
    int64_t preferred = 0;  // likewise
  };
  State state() const { return {limit_, preferred_}; }
  void set_state(const State& state);
  /// They succeeded; logs once when they are smaller than at first.
  void close_window(const Ranges& ranges);

 private:
  bool is_at_work() const;

  torch::Device device_;
  int ranks_;
  precision::BufferBackup buffers_;
  std::string batch_norm_;  // the name of one in the model; empty: there is none
  std::vector<GeneratorState> generators_;
  int64_t limit_ = 0;              // samples; 0: none
  int64_t preferred_ = 0;          // likewise
  int64_t largest_succeeded_ = 0;  // the largest so far
  int64_t too_large_ = 0;          // of this window
};

}  // namespace fleet
