// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/plan.h"

#include <algorithm>

#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"

namespace fleet::memory {

std::string Plan::describe() const {
  const auto dropped = std::ranges::count_if(segments, &Segment::is_dropped);
  auto text = format("{} of {} recomputed, results of {} recomputed selectively", dropped,
                     plural(std::ssize(segments), "segment"),
                     plural(std::ranges::count(recomputed, 1), "op"));
  if (offloaded_bytes > 0) {
    text += format(", {} of {} offloaded", byte_size_text(offloaded_bytes),
                   plural(std::ranges::count_if(segments, &Segment::is_offloaded), "segment"));
    if (stall_seconds > 0) text += format(" (waiting {:.3f} s for the disk)", stall_seconds);
  }
  return text;
}

bool PlannedPolicy::cut_before_op(const Tape& tape, const OpTraits& op) {
  const auto next = static_cast<size_t>(tape.next_op());
  if (has_diverged_) return false;
  has_diverged_ = next >= plan_->ops.size() || plan_->ops[next] != op.name;
  return has_diverged_ || is_due(tape);
}

bool PlannedPolicy::cut_before_recompute(const Tape& tape) {
  return !has_diverged_ && is_due(tape);
}

// Cuts inside of `fleet::recompute` are due behind it.
bool PlannedPolicy::is_due(const Tape& tape) {
  const auto before = segment_;
  while (segment_ + 1 < plan_->segments.size() &&
         plan_->segments[segment_ + 1].first_op <= tape.next_op()) {
    ++segment_;
  }
  if (segment_ == before) return false;
  followed_.push_back(segment_);
  return true;
}

TapePolicy::Treatment PlannedPolicy::treatment(int /*segment*/) {
  if (has_diverged_) return Treatment::kEvictOnDemand;
  return plan_->segments[segment_].is_dropped ? Treatment::kEvictEagerly : Treatment::kKeep;
}

bool PlannedPolicy::offloads(int segment) {
  const auto number = static_cast<size_t>(segment);
  return number < followed_.size() && plan_->segments[followed_[number]].is_offloaded;
}

bool PlannedPolicy::recomputes_results_of(const OpRecord& op) {
  return !has_diverged_ && static_cast<size_t>(op.index) < plan_->recomputed.size() &&
         plan_->recomputed[static_cast<size_t>(op.index)] != 0;
}

}  // namespace fleet::memory
