// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/out_of_memory_retry.h"

#include "fleet/core/error.h"
#include "fleet/core/error_message.h"
#include "fleet/core/log.h"
#include "fleet/core/log_subject.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_exceeded.h"

namespace fleet {

int64_t OutOfMemoryRetry::count(const BatchShape& batch) const {
  const auto count = std::ssize(micro_batches_of(batch, ranges_of(batch)));
  if (count <= 1 || batch.can_slice) return count;
  throw Error("gradient_merge",
              format("this batch of {} samples is to be split into {} micro-batches, and its "
                     "type has no slice(begin, end)",
                     batch.samples, count),
              "give it slice(), or call minimize(closure) once per micro-batch");
}

// Empty: the batch is one micro-batch of a window.
OutOfMemoryRetry::Ranges OutOfMemoryRetry::ranges_of(const BatchShape& batch) const {
  if (batch.is_micro_batch) return {};
  return stack_.micro_batch->split(stack_.merge, batch.samples);
}

OutOfMemoryRetry::MicroBatches OutOfMemoryRetry::micro_batches_of(const BatchShape& batch,
                                                                  const Ranges& ranges) const {
  if (batch.is_micro_batch) {
    return {{.is_last = stack_.merge.next_is_last(),
             .window_size = stack_.merge.calls_per_update(),
             .can_restart = !window_.is_open()}};
  }
  const auto requested = std::ssize(stack_.merge.split(batch.samples));
  MicroBatches result;
  for (const auto& [begin, end] : ranges) {
    result.push_back({.begin = begin,
                      .end = end,
                      .batch_samples = batch.samples,
                      .weight = static_cast<double>(end - begin),
                      .is_last = end == batch.samples,
                      .window_size = std::ssize(ranges),
                      .requested_size = requested});
  }
  return result;
}

void OutOfMemoryRetry::run(const BatchShape& batch,
                           const std::function<void(const MicroBatches&)>& work) {
  // What earlier calls added to the window cannot be told apart from what this one did.
  const bool is_first = !window_.is_open();
  for (;;) {
    const auto ranges = ranges_of(batch);
    try {
      memory::with_budget_errors([&] { work(micro_batches_of(batch, ranges)); });
    } catch (const c10::OutOfMemoryError& error) {
      if (!is_first || !recover(batch, ranges, error)) throw;
      continue;
    }
    succeeded(batch, ranges);
    return;
  }
}

// False: neither another plan nor smaller micro-batches may fit.
bool OutOfMemoryRetry::recover(const BatchShape& batch, const Ranges& ranges,
                               const c10::OutOfMemoryError& error) {
  if (!batch.can_slice && !stack_.memory) return false;
  if (!may_restart(error)) return false;
  const log::SubjectScope subject(stack_.subject->text());
  const bool is_merged = stack_.strategy.gradient_merge;
  const bool can_split = batch.can_slice && stack_.micro_batch->can_split(ranges, is_merged);
  const bool has_another_plan = stack_.memory && stack_.memory->replan(can_split);
  if (!has_another_plan && !batch.can_slice) return false;
  const auto why_not = stack_.micro_batch->why_not_split(ranges, is_merged);
  if (!has_another_plan && !why_not.empty()) {
    throw UsageError("memory", format("{}: {}", why_not, without_fix(error_message(error))),
                     "raise the budget, use a smaller batch, or switch gradient_merge on");
  }
  window_.abandon();
  if (!has_another_plan) stack_.micro_batch->shrink(ranges, error);
  stack_.micro_batch->restore();
  return true;
}

bool OutOfMemoryRetry::may_restart(const c10::OutOfMemoryError& error) const {
  if (!stack_.micro_batch->can_shrink()) return false;
  const bool is_norm_synced = stack_.strategy.sync_batch_norm && stack_.comm->size() > 1;
  if (!window_.is_sending() && !is_norm_synced) return true;
  throw Error("memory",
              format("rank {} is out of memory {}, where a batch cannot be started again: {}",
                     stack_.comm->rank(),
                     window_.is_sending() ? "in a backward that has begun to send gradients"
                                          : "between forwards that all ranks share "
                                            "(sync_batch_norm)",
                     without_fix(error_message(error))),
              "split batches smaller from the start: gradient_merge_configs.micro_batch_size");
}

void OutOfMemoryRetry::succeeded(const BatchShape& batch, const Ranges& ranges) {
  if (batch.is_micro_batch) return;
  stack_.micro_batch->close_window(ranges);
  if (!batch.can_slice || !may_choose_size()) return;
  const log::SubjectScope subject(stack_.subject->text());
  const auto largest = stack_.micro_batch->largest_size(stack_.merge, batch.samples);
  stack_.micro_batch->prefer(stack_.memory->fastest_micro_batch(largest));
}

// Gradient merge without a size leaves it to the plans.
bool OutOfMemoryRetry::may_choose_size() const {
  const auto& configs = stack_.strategy.gradient_merge_configs;
  return stack_.memory && stack_.strategy.gradient_merge && configs.k_steps == 1 &&
         configs.micro_batch_size == 0 &&
         !(stack_.strategy.sync_batch_norm && stack_.comm->size() > 1);
}

}  // namespace fleet
