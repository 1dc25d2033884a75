// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/memory/memory_log.h"

#include <algorithm>
#include <string>

#include "fleet/core/log.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/memory/offload/offloaded_storage.h"

namespace fleet {

void MemoryLog::kept_small_value(int64_t bytes) {
  largest_small_ = std::max(largest_small_, bytes);
}

void MemoryLog::after_micro_batch(int64_t peak, const memory::BudgetPlans& plans) {
  const bool follows_plan = plans.follows_plan();
  if (follows_plan) planned_.bytes = std::max(planned_.bytes, peak);
  planned_.is_all &= follows_plan || !plans.is_resolved();
  limited_.is_all &= plans.is_resolved();
}

void MemoryLog::after_update(const memory::BudgetPlans::Steps& steps, const MemoryReport& report,
                             const memory::BudgetPlans* plans) {
  if (is_silent_) return;
  if (!has_logged_memory_ && steps.is_settled) {
    has_logged_memory_ = true;
    log_memory(steps, report, plans);
  }
  if (has_logged_recompute_ || (plans && !steps.is_settled)) return;
  has_logged_recompute_ = true;
  if (!tape_) return;  // this rank had no samples
  log_recompute();
  if (offloads_) log_offload(steps, report);
}

void MemoryLog::log_memory(const memory::BudgetPlans::Steps& steps, const MemoryReport& report,
                           const memory::BudgetPlans* plans) const {
  auto text = std::string("plain training of this batch");
  if (steps.samples > 0)
    text = format("plain training of {} at once", plural(steps.samples, "sample"));
  text += format(" would take {}{}", steps.is_scaled_up ? "about " : "",
                 byte_size_text(steps.plain_peak));
  text += plans ? format("; the budget in force is {}", byte_size_text(plans->budget()))
                : std::string("; no budget is in force");
  text += limited_.is_all
              ? format("; {} used at the peak", byte_size_text(report.measured_peak))
              : format("; {} used at the peak since it is known", byte_size_text(limited_.bytes));
  if (steps.predicted_peak > 0) {
    if (!planned_.is_all) {
      text += format(", micro-batches without a plan included; {} in those with one",
                     byte_size_text(planned_.bytes));
    }
    text += format(" ({} predicted)", byte_size_text(steps.predicted_peak));
  }
  log::info("memory", text);
}

void MemoryLog::log_recompute() const {
  auto text = format("a forward has {} to recompute, and evicted {}, {}",
                     plural(tape_->segments, "segment"), plural(tape_->evicted, "value"),
                     byte_size_text(tape_->evicted_bytes));
  std::string by_op;
  for (const auto& [op, bytes] : tape_->kept_ops) {
    by_op += format("{}{} {}", by_op.empty() ? "" : ", ", op, byte_size_text(bytes));
  }
  if (!by_op.empty()) {
    text += format("; kept, since no op can recompute them: {}, {} ({})",
                   plural(tape_->not_recomputable, "value"),
                   byte_size_text(tape_->not_recomputable_bytes), by_op);
  }
  log::info("recompute", text);
}

void MemoryLog::log_offload(const memory::BudgetPlans::Steps& steps,
                            const MemoryReport& report) const {
  if (!steps.offload_note.empty()) {
    log::info("offload", format("0 B offloaded: {}", steps.offload_note));
    return;
  }
  auto text = format("an update offloaded {}, fetched {}, waited {:.3f} s for the disk",
                     byte_size_text(report.offloaded_bytes), byte_size_text(report.fetched_bytes),
                     report.offload_stall_s);
  if (report.offloaded_bytes == 0) {
    text +=
        largest_small_ > 0
            ? format("; the largest value that could be offloaded has {}, and less than {} is kept",
                     byte_size_text(largest_small_), byte_size_text(memory::Offload::kMinBytes))
            : "; the program itself, or the last segment, needs every value that crosses a cut";
  }
  log::info("offload", text);
}

}  // namespace fleet
