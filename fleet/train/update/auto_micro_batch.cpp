// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/auto_micro_batch.h"

#include <algorithm>

#include <ATen/Context.h>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/error_message.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/allocator/budget_exceeded.h"

namespace fleet {
namespace {

constexpr int64_t kMaxMicroBatches = 256;  // of a batch that is split because memory is short

int64_t largest(const AutoMicroBatch::Ranges& ranges) {
  int64_t samples = 0;
  for (const auto& range : ranges) samples = std::max(samples, range.end - range.begin);
  return samples;
}

// As gradient merge says, or in micro-batches of at most `most` samples where its own are larger;
// 0: as it says.
AutoMicroBatch::Ranges ranges_of(const optim::GradientMerge& merge, int64_t samples, int64_t most) {
  auto ranges = merge.split(samples);
  if (most == 0 || largest(ranges) <= most) return ranges;
  return optim::GradientMerge({.micro_batch_size = most}).split(samples);
}

}  // namespace

AutoMicroBatch::AutoMicroBatch(const ModelHandle& model, torch::Device device, int ranks)
    : device_(device), ranks_(ranks), buffers_(model) {
  constexpr std::string_view kStatistics = "running_mean";
  for (const auto& [name, buffer] : model.buffers()) {
    if (!name.ends_with(kStatistics)) continue;
    batch_norm_ = name.substr(0, name.size() - kStatistics.size());
    if (batch_norm_.ends_with('.')) batch_norm_.pop_back();
    if (batch_norm_.empty()) batch_norm_ = "the model itself";
    break;
  }
}

bool AutoMicroBatch::is_at_work() const {
  if (!device_.is_cpu()) return true;
  auto& allocator = memory::BudgetAllocator::cpu();
  return allocator.is_on() && allocator.counter().budget().has_value();
}

AutoMicroBatch::Ranges AutoMicroBatch::split(const optim::GradientMerge& merge,
                                             int64_t samples) const {
  const auto most = preferred_ > 0 && (limit_ == 0 || preferred_ < limit_) ? preferred_ : limit_;
  return ranges_of(merge, samples, most);
}

int64_t AutoMicroBatch::largest_size(const optim::GradientMerge& merge, int64_t samples) const {
  return largest(ranges_of(merge, samples, limit_));
}

void AutoMicroBatch::prefer(int64_t samples) { preferred_ = samples; }

void AutoMicroBatch::set_state(const State& state) {
  limit_ = state.limit;
  preferred_ = state.preferred;
}

void AutoMicroBatch::open_window() {
  too_large_ = 0;
  generators_.clear();
  if (!is_at_work()) return;
  const memory::BudgetExemptScope bookkeeping;
  const AllocationTag tag(allocation::kBufferBackup);
  buffers_.save();
  generators_.push_back(GeneratorState::of_default());
  if (!device_.is_cpu()) {
    generators_.emplace_back(at::globalContext().defaultGenerator(device_));
  }
}

bool AutoMicroBatch::may_overlap(int64_t samples) const {
  return ranks_ == 1 || samples <= largest_succeeded_ || !is_at_work();
}

void AutoMicroBatch::shrink(const Ranges& failed, const c10::OutOfMemoryError& error) {
  const auto samples = largest(failed);
  if (samples <= 1) {
    const auto what = format("one sample does not fit, however a batch is split: {}",
                             without_fix(error_message(error)));  // its fix: smaller micro-batches
    if (dynamic_cast<const memory::BudgetExceeded*>(&error) != nullptr) {
      throw UsageError("memory", what, "raise the budget, or use a smaller model");
    }
    throw Error("memory", what,
                "free memory on this machine, train within a memory budget (recompute), or use a "
                "smaller model");
  }
  too_large_ = std::max(too_large_, samples);
  limit_ = samples / 2;
}

std::string AutoMicroBatch::why_not_split(const Ranges& ranges, bool merge_was_asked_for) const {
  if (largest(ranges) <= 1) return {};
  if (!batch_norm_.empty() && !merge_was_asked_for) {
    return format(
        "the batch norm in '{}' would see other batches if this one was split, so it is not "
        "unless gradient_merge is on",
        batch_norm_);
  }
  if (2 * std::ssize(ranges) > kMaxMicroBatches) {
    return format("it is split into {} already, and more would be too slow",
                  plural(std::ssize(ranges), "micro-batch", "micro-batches"));
  }
  return {};
}

bool AutoMicroBatch::can_split(const Ranges& ranges, bool merge_was_asked_for) const {
  return largest(ranges) > 1 && why_not_split(ranges, merge_was_asked_for).empty();
}

void AutoMicroBatch::restore() {
  buffers_.restore();
  for (const auto& generator : generators_) generator.restore();
}

void AutoMicroBatch::close_window(const Ranges& ranges) {
  const auto samples = largest(ranges);
  largest_succeeded_ = std::max(largest_succeeded_, samples);
  if (too_large_ == 0) return;
  log::warn_here("memory", format("micro-batches of {} did not fit: from now on a batch is split "
                                  "into micro-batches of at most {}",
                                  plural(too_large_, "sample"), limit_));
}

}  // namespace fleet
