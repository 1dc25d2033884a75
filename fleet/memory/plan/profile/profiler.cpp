// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/profile/profiler.h"

#include <algorithm>
#include <unordered_set>

#include "fleet/core/seconds_since.h"
#include "fleet/memory/plan/profile/equal_ops.h"
#include "fleet/memory/replay/mask_bits.h"

namespace fleet::memory {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Profiler::Profiler(MemoryCounter& counter) : counter_(counter), began_(Clock::now()) {
  profile_.base = counter_.live();
  counter_.take_window_peak();
}

// A backward inside the forward counts for the op before it.
void Profiler::close_op() {
  const auto peak = counter_.take_window_peak();
  profile_.measured_peak = std::max(profile_.measured_peak, peak);
  if (!std::exchange(had_inner_backward_, false) || profile_.ops.empty()) return;
  auto& op = profile_.ops.back();
  op.transient = std::max(op.transient, peak - op_live_);
}

void Profiler::op_begins(int op) {
  close_op();
  profile_.ops.resize(static_cast<size_t>(op) + 1);
  op_live_ = counter_.live();
  left_out_of_op_ = 0;
  op_began_ = Clock::now();
}

void Profiler::op_returned() {
  auto& op = profile_.ops.back();
  op.seconds = seconds_since(op_began_) - std::exchange(left_out_of_op_, 0);
  const auto peak = counter_.take_window_peak();
  profile_.measured_peak = std::max(profile_.measured_peak, peak);
  op.transient = std::max(op.transient, peak - op_live_);  // its results are part of it
}

int Profiler::add_block(const StepProfile::Block& block) {
  profile_.blocks.push_back(block);
  return static_cast<int>(profile_.blocks.size()) - 1;
}

void Profiler::kept(int block, const std::shared_ptr<KeptValue>& kept) {
  kept_.emplace_back(block, kept);
}

void Profiler::forward_ended() {
  close_op();
  in_forward_ = false;
  profile_.forward_seconds = seconds_since(began_) - left_out_of_forward_;
  node_began_ = Clock::now();
}

void Profiler::pause() {
  if (std::exchange(is_paused_, true)) return;
  close_node();
  node_ = -1;
}

// The window is split there: what was freed would hide what the op takes.
void Profiler::evicted(int64_t bytes, double seconds) {
  const auto peak = counter_.take_window_peak();
  profile_.measured_peak = std::max(profile_.measured_peak, peak);
  if (in_forward_) {
    if (!profile_.ops.empty()) {
      auto& op = profile_.ops.back();
      op.transient = std::max(op.transient, peak - op_live_);
    }
    op_live_ -= bytes;
    left_out_of_op_ += seconds;
    if (!is_unpacking_) left_out_of_forward_ += seconds;
  } else {
    if (node_ >= 0 && !is_unpacking_) {
      auto& op = profile_.ops[static_cast<size_t>(node_)];
      op.backward_transient = std::max(op.backward_transient, peak - node_live_);
    }
    node_live_ -= bytes;
    if (!is_unpacking_) left_out_of_node_ += seconds;
  }
}

// What the tape still holds of the forward, each storage once, and the bits of evicted masks.
int64_t Profiler::held_bytes() {
  std::unordered_set<const void*> seen;
  int64_t bytes = 0;
  std::erase_if(kept_, [](const auto& entry) { return entry.second.expired(); });
  for (const auto& [block, entry] : kept_) {
    const auto value = entry.lock();
    if (!value) continue;
    using enum KeptValue::State;
    const auto& of = profile_.blocks[static_cast<size_t>(block)];
    if (of.is_mask && (value->state() == kEvicted || value->state() == kRecomputed)) {
      bytes += StepProfile::bits_of(of);
    }
    if (!value->is_resident() || !value->tensor().has_storage()) continue;
    const auto& storage = value->tensor().storage();
    if (seen.insert(storage.unsafeGetStorageImpl()).second) {
      bytes += counted_bytes(storage.nbytes());
    }
  }
  return bytes;
}

void Profiler::close_node() {
  const auto peak = counter_.take_window_peak();
  profile_.measured_peak = std::max(profile_.measured_peak, peak);
  const double seconds = seconds_since(node_began_) - std::exchange(left_out_of_node_, 0);
  if (node_ >= 0) {
    auto& op = profile_.ops[static_cast<size_t>(node_)];
    op.backward_transient = std::max(op.backward_transient, peak - node_live_);
    op.backward_seconds += seconds;
  }
  profile_.backward_seconds += seconds;
  node_began_ = Clock::now();
}

// What follows, up to `unpacked`, does not count for the node: plain training has none of it.
void Profiler::unpacking() {
  had_inner_backward_ |= in_forward_;
  is_unpacking_ = true;
  if (std::exchange(is_paused_, false)) {
    counter_.take_window_peak();
    left_out_of_node_ = 0;
  } else if (!in_forward_) {
    close_node();
  }
  unpacking_began_ = Clock::now();
}

void Profiler::unpacked(int op, int64_t handed_out) {
  is_unpacking_ = false;
  if (in_forward_) {
    left_out_of_forward_ += seconds_since(unpacking_began_);
    return;
  }
  node_began_ = Clock::now();
  profile_.measured_peak = std::max(profile_.measured_peak, counter_.take_window_peak());
  // After `finish` too, by a backward of a graph that was kept longer than the step.
  if (op < 0 || op >= std::ssize(profile_.ops)) return;
  if (node_ != op) node_handed_out_ = 0;
  node_handed_out_ += handed_out;
  node_ = op;
  auto& entry = profile_.ops[static_cast<size_t>(op)];
  node_live_ = counter_.live();
  entry.has_backward = true;
  const auto in_transit = file_ ? file_->statistics().memory_bytes : 0;
  entry.gradient_bytes = std::max(entry.gradient_bytes, node_live_ - profile_.base - held_bytes() -
                                                            node_handed_out_ - in_transit);
}

void Profiler::replayed(int op, double seconds, bool is_whole) {
  replays_.replayed(op, seconds, is_whole);
}
void Profiler::recomputed(double overhead) { replays_.recomputed(overhead); }

// A dropout that was not replayed in this step: its random numbers are not drawn again, since its
// mask waits as bits.
void Profiler::estimate_dropouts() {
  for (size_t i = 0; i < profile_.ops.size(); ++i) {
    if (replays_.has(static_cast<int>(i))) continue;
    auto& op = profile_.ops[i];
    for (const int block : op.makes) {
      const auto& mask = profile_.blocks[static_cast<size_t>(block)];
      if (!mask.is_mask) continue;
      op.replay_seconds = std::min(op.replay_seconds,
                                   MaskBits::seconds_per_byte() * static_cast<double>(mask.bytes));
    }
  }
}

StepProfile Profiler::finish() {
  pause();
  replays_.write_into(profile_, &StepProfile::Op::seconds);
  estimate_dropouts();
  share_medians(profile_);
  return std::move(profile_);
}

}  // namespace fleet::memory
