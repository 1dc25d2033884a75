// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/memory/memory_strategy.h"

#include <algorithm>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/process/memory_limit.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/memory/allocator/budget_amount.h"
#include "fleet/memory/offload/direct_file.h"
#include "fleet/train/memory/named_checkpoints.h"
#include "fleet/train/memory/plain_step.h"

namespace fleet {
namespace {

constexpr double kUnboundedShare = 0.8;  // of what the process may have
constexpr int64_t kStagingShare = 128;   // of a budget, one part is for staging
constexpr int64_t kMinStaging = 64 << 10;
constexpr int64_t kMinMeasured = int64_t{4} << 20, kMaxMeasured = int64_t{64} << 20;

}  // namespace

MemoryStrategy::MemoryStrategy(const RecomputeConfigs& configs, int ranks_on_host)
    : configs_(configs), log_(configs) {
  auto& allocator = memory::BudgetAllocator::cpu();
  if (!configs.memory_budget.empty() || configs.plan_only) {
    counting_ = std::make_unique<memory::BudgetAllocatorScope>(allocator);
    plan_for_budget(ranks_on_host);
    return;
  }
  named_ = std::make_shared<NamedCheckpoints>(configs);
  try {
    counting_ = std::make_unique<memory::BudgetAllocatorScope>(allocator);
    plain_ = std::make_unique<PlainStep>();
  } catch (const Error& error) {
    log::info("memory", format("tensors are not counted: {}", error.what()));
  }
}

void MemoryStrategy::plan_for_budget(int ranks_on_host) {
  using memory::BudgetAmount;
  const auto limit = memory_limit();
  const auto amount =
      configs_.memory_budget.empty()
          ? BudgetAmount{.unit = BudgetAmount::Unit::kFractionOfLimit, .fraction = 1}
          : BudgetAmount::parse(configs_.memory_budget).value_or(BudgetAmount{});
  const auto budget = amount.of(limit, ranks_on_host);
  const bool of_plain = amount.unit == BudgetAmount::Unit::kFractionOfPlain;
  if (amount.unit == BudgetAmount::Unit::kFractionOfLimit && !configs_.memory_budget.empty()) {
    log::info("memory", format("the budget of this rank is {}: {}", byte_size_text(budget),
                               amount.derivation(limit, ranks_on_host)));
  }
  limit_ = static_cast<int64_t>(kUnboundedShare * static_cast<double>(limit.bytes)) /
           std::max(ranks_on_host, 1);
  memory::OffloadFile::Speed disk;
  if (configs_.enable_offload) {
    staging_ = std::clamp(memory::DirectFile::whole_blocks(budget / kStagingShare), kMinStaging,
                          memory::OffloadOptions().buffer_bytes);
    open_file();
    disk = file_->measure(std::clamp(budget / 4, kMinMeasured, kMaxMeasured));
    counted_ = file_->statistics();
    log::info(
        "offload",
        format("the disk writes {}/s and reads {}/s, for {:.0f} % of a core; staging takes {} "
               "of the budget",
               byte_size_text(static_cast<int64_t>(disk.write)),
               byte_size_text(static_cast<int64_t>(disk.read)), 100 * disk.compute_slowdown,
               byte_size_text(staging_)));
  }
  plans_ = std::make_unique<memory::BudgetPlans>(
      memory::BudgetPlansOptions{.budget = budget,
                                 .fraction_of_plain = of_plain ? amount.fraction : 0,
                                 .limit = limit_,
                                 .disk = disk,
                                 .staging = staging_,
                                 .logs_plans = !configs_.plan_only},
      memory::BudgetAllocator::cpu().counter());
}

MemoryStrategy::~MemoryStrategy() {
  auto& counter = memory::BudgetAllocator::cpu().counter();
  for (const auto& [bytes, tag] : charged_) counter.release(bytes, tag);
}

MemoryStrategy::Enforced::Enforced(MemoryStrategy* memory) : memory_(memory) {
  if (!memory_ || memory_->enforced_depth_++ > 0) return;
  auto& counter = memory::BudgetAllocator::cpu().counter();
  counter.take_call_peak();
  memory_->is_reported_ = false;
  if (!memory_->plans_) return;
  memory_->enforced_.emplace(counter, memory_->plans_->budget());
  memory_->apply_budget();
}

MemoryStrategy::Enforced::~Enforced() {
  if (!memory_ || --memory_->enforced_depth_ > 0) return;
  memory_->enforced_.reset();
  if (!memory_->is_reported_) memory_->take_peak();
}

void MemoryStrategy::take_peak() {
  const auto peak = memory::BudgetAllocator::cpu().counter().take_call_peak();
  pending_peak_ = std::max(pending_peak_, peak);
  step_peak_ = std::max(step_peak_, peak);
  if (plans_ && plans_->is_resolved()) log_.limited(peak);
}

void MemoryStrategy::apply_budget() {
  if (enforced_) enforced_->set(is_unbounded_ ? limit_ : plans_->budget());
}

int64_t MemoryStrategy::counted() const {
  return counting_ ? memory::BudgetAllocator::cpu().counter().live() : 0;
}

void MemoryStrategy::charge(int64_t bytes, const char* tag) {
  if (!counting_ || bytes <= 0) return;
  memory::BudgetAllocator::cpu().counter().charge(bytes, tag);
  charged_.emplace_back(bytes, tag);
}

void MemoryStrategy::open_file() {
  if (file_) return;
  memory::OffloadOptions options;
  if (staging_ > 0) options.buffer_bytes = staging_;
  file_ = std::make_shared<memory::OffloadFile>(options);
}

void MemoryStrategy::close_file() {
  add_file_statistics();
  file_.reset();
  counted_ = {};
}

MemoryStrategy::Forward::Forward(MemoryStrategy* memory, int64_t samples, Restart restart)
    : memory_(memory) {
  if (!memory_) return;
  auto& m = *memory_;
  m.take_peak();
  m.step_peak_ = 0;
  std::shared_ptr<memory::Profiler> profiler;
  std::shared_ptr<memory::ReplayTimes> replays;
  const bool uses_file = m.configs_.enable_offload && (!m.plans_ || m.plans_->prepare(samples));
  if (uses_file) {
    m.open_file();
  } else {
    m.close_file();
  }
  if (m.plans_) {
    if (!uses_file) m.plans_->prepare(samples);
    auto run = m.plans_->begin(restart);
    backwards_ = std::move(run.backwards);
    watch_.emplace([counter = backwards_] { counter->begun(); });
    if (restart != Restart::kHere) last_resort_.emplace([&m] { return m.exceed(); });
    policy_ = std::move(run.policy);
    profiler = std::move(run.profiler);
    replays = std::move(run.replays);
    m.is_unbounded_ = run.is_unbounded;
    m.apply_budget();
  } else {
    policy_ = m.named_;
    if (m.plain_) {
      profiler = m.plain_->begin(memory::BudgetAllocator::cpu().counter(), samples);
    }
  }
  if (uses_file) {
    offload_.emplace(m.file_);
    if (m.plans_) offload_->max_queued = 0;  // plans count on what left being gone
    offload_->is_synchronous = profiler != nullptr;
  }
  scope_.emplace(*policy_, std::move(profiler), offload_ ? &*offload_ : nullptr);
  scope_->tape().set_replay_observer(std::move(replays));
}

void MemoryStrategy::Forward::finish() {
  if (!memory_) return;
  scope_->tape().end();
  const auto tape = scope_->tape().report();
  scope_.reset();
  last_resort_.reset();
  watch_.reset();
  if (backwards_) backwards_->forward_ended();
  if (offload_) memory_->log_.kept_small_value(offload_->largest_small);
  if (memory_->named_) memory_->named_->check();
  if (memory_->plans_) memory_->plans_->end_forward(tape);
  memory_->add(tape);
}

void MemoryStrategy::end_backward() {
  if (plain_) plain_->end(file_ ? memory::OffloadOptions().buffer_bytes : 0);
  if (!plans_) return;
  take_peak();
  log_.after_micro_batch(step_peak_, *plans_);
  plans_->end_backward();
  is_unbounded_ = false;
  apply_budget();
}

bool MemoryStrategy::exceed() {
  if (!plans_ || !plans_->exceed()) return false;
  is_unbounded_ = true;
  apply_budget();
  return true;
}

bool MemoryStrategy::replan(bool can_split) { return plans_ && plans_->tighten(can_split); }

int64_t MemoryStrategy::fastest_micro_batch(int64_t largest) {
  if (!plans_) return largest;
  const auto best = plans_->fastest_micro_batch(largest);
  const auto before = std::exchange(preferred_, best);
  if (before != best && (before != 0 || best != largest) && !configs_.plan_only) {
    const auto plan = plans_->plan(best);
    log::info("plan",
              format("micro-batches of {} from now on: {}", plural(best, "sample"),
                     plan ? format("fastest by the plans, {:.4g} ms a sample",
                                   1e3 * plan->predicted_seconds / static_cast<double>(best))
                          : std::string("they may be faster, and are measured next")));
  }
  return best;
}

void MemoryStrategy::add(const memory::TapeReport& tape) {
  log_.after_forward(tape);
  report_.segments += tape.segments;
  report_.evicted += tape.evicted;
  report_.evicted_bytes += tape.evicted_bytes;
  report_.not_recomputable += tape.not_recomputable;
  report_.not_recomputable_bytes += tape.not_recomputable_bytes;
}

void MemoryStrategy::add_file_statistics() {
  if (!file_) return;
  const auto now = file_->statistics();
  report_.offloaded_bytes += now.bytes_written - counted_.bytes_written;
  report_.fetched_bytes += now.bytes_read - counted_.bytes_read;
  report_.offload_stall_s += now.stall_seconds - counted_.stall_seconds;
  counted_ = now;
}

memory::BudgetPlans::Steps MemoryStrategy::steps_of_window(bool window_is_open) {
  if (plain_) return plain_->of_window(window_is_open);
  if (!plans_) return {};
  auto steps = plans_->steps();
  if (!window_is_open) plans_->begin_window();
  steps.is_settled &= preferred_ == 0 || preferred_ == steps.largest;
  return steps;
}

MemoryReport MemoryStrategy::report_of_call(bool updated, bool window_is_open) {
  add_file_statistics();
  const auto steps = steps_of_window(window_is_open);
  report_.plain_peak = steps.plain_peak;
  report_.predicted_peak = steps.predicted_peak;
  if (plans_ && plans_->is_resolved()) report_.budget = plans_->budget();
  if (counting_) {
    take_peak();
    report_.measured_peak = std::max(window_peak_, std::exchange(pending_peak_, 0));
    window_peak_ = window_is_open ? report_.measured_peak : 0;
    is_reported_ = true;
    report_.now = memory::BudgetAllocator::cpu().counter().live();
  }
  if (updated) log_.after_update(steps, report_, plans_.get());
  if (!window_is_open) log_.begin_window();
  if (configs_.plan_only && steps.is_settled) {
    plan_text_ = configs_.memory_budget.empty() ? plans_->plain_summary(steps.largest)
                                                : plans_->summary(steps.sizes);
  } else if (!steps.sizes.empty()) {
    plan_text_.reset();  // this window ran without a settled plan
  } else if (!plan_text_) {
    plan_text_ = "this rank had no samples, so it has no plan\n";
  }
  return std::exchange(report_, {});
}

void MemoryStrategy::forget() {
  file_.reset();
  counted_ = {};
  report_ = {};
  log_.begin_window();
  is_unbounded_ = false;
  if (plain_) plain_->forget();
  if (plans_) plans_->forget();
}

}  // namespace fleet
