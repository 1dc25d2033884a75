// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/memory/memory_strategy.h"

#include <algorithm>

#include <c10/util/StringUtil.h>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/process/memory_limit.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"
#include "fleet/core/text/plural.h"
#include "fleet/memory/allocator/budget_amount.h"
#include "fleet/memory/offload/direct_file.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/tape/policies.h"

namespace fleet {
namespace {

constexpr double kUnboundedShare = 0.8;  // of what the process may have
constexpr int64_t kStagingShare = 128;   // of a budget, one part is for staging
constexpr int64_t kMinStaging = 64 << 10;
constexpr int64_t kMinMeasured = int64_t{4} << 20, kMaxMeasured = int64_t{64} << 20;

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 12;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kMost) text += format(" and {} more", names.size() - kMost);
  return text;
}

}  // namespace

// Cuts at the names of the configuration; the first forward must have them all.
class MemoryStrategy::NamedCheckpoints final : public memory::NamedCuts {
 public:
  explicit NamedCheckpoints(const RecomputeConfigs& configs)
      : NamedCuts(configs.checkpoints),
        shape_(configs.enable_offload ? configs.checkpoint_shape : std::vector<int64_t>()) {}

  void on_checkpoint(std::string_view name, const torch::Tensor& x) override {
    if (proved_ || shape_.empty() || !names().contains(name)) return;
    if (x.sizes() == c10::IntArrayRef(shape_)) return;
    throw UsageError(
        "recompute",
        format("checkpoint '{}' has shape {}, and recompute_configs.checkpoint_shape says "
               "{}",
               name, c10::str(x.sizes()), c10::str(c10::IntArrayRef(shape_))),
        "leave checkpoint_shape out: it is not needed");
  }

  void prove() {
    if (proved_) return;
    const std::vector<std::string> known(seen().begin(), seen().end());
    std::vector<std::string> problems;
    for (const auto& name : names()) {
      if (!seen().contains(name))
        problems.push_back(format("'{}'{}", name, did_you_mean(name, known)));
    }
    if (problems.empty()) {
      proved_ = true;
    } else if (known.empty()) {
      throw UsageError::all(
          "recompute",
          "the forward names no tensor, so it cannot be cut at these checkpoints:", problems,
          "name them in the model: x = fleet::checkpoint(layer->forward(x), \"name\")");
    } else {
      throw UsageError::all(
          "recompute", "the forward never names these checkpoints:", problems,
          format("take them out of recompute_configs.checkpoints, or name them in the "
                 "model with fleet::checkpoint; it names {}",
                 listed(known)));
    }
  }

 private:
  std::vector<int64_t> shape_;
  bool proved_ = false;
};

// Measures one step for what plain training would take: the second, since the first meets cold
// caches, and a program that runs only one needs no such figure.
struct MemoryStrategy::PlainStep {
  std::shared_ptr<memory::Profiler> begin(memory::MemoryCounter& counter, int64_t of) {
    steps.samples += of;
    if (std::ranges::find(steps.sizes, of) == steps.sizes.end()) steps.sizes.push_back(of);
    steps.largest = std::max(steps.largest, of);
    if (++forwards != 2) return nullptr;
    samples = of;
    profiler = std::make_shared<memory::Profiler>(counter);
    return profiler;
  }

  void end(int64_t staging) {
    if (!profiler) return;
    const auto profile = std::exchange(profiler, nullptr)->finish();
    base = profile.base - staging;
    peak = memory::keep_everything(profile).predicted_peak - staging;
  }

  void forget() {
    if (profiler) forwards = 1;
    profiler.reset();
    steps = {};
  }

  memory::BudgetPlans::Steps of_window(bool window_is_open) {
    auto result = steps;
    if (!window_is_open) steps = {};
    result.is_settled = peak > 0;
    result.plain_peak = peak;
    if (peak > 0 && samples > 0 && result.samples > samples) {
      result.is_scaled_up = true;
      const auto times = static_cast<double>(result.samples) / static_cast<double>(samples);
      result.plain_peak = base + static_cast<int64_t>(static_cast<double>(peak - base) * times);
    }
    return result;
  }

  int64_t forwards = 0;
  int64_t samples = 0, base = 0, peak = 0;  // of the step that was measured
  std::shared_ptr<memory::Profiler> profiler;
  memory::BudgetPlans::Steps steps;
};

MemoryStrategy::MemoryStrategy(const RecomputeConfigs& configs, int ranks_on_host)
    : configs_(configs) {
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

MemoryStrategy::Forward::Forward(MemoryStrategy* memory, int64_t samples) : memory_(memory) {
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
    auto run = m.plans_->begin();
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
  if (offload_) {
    memory_->largest_small_ = std::max(memory_->largest_small_, offload_->largest_small);
  }
  if (memory_->named_) memory_->named_->prove();
  if (memory_->plans_) memory_->plans_->end_forward(tape);
  memory_->add(tape);
}

void MemoryStrategy::end_backward() {
  if (plain_) plain_->end(file_ ? memory::OffloadOptions().buffer_bytes : 0);
  if (!plans_) return;
  take_peak();
  const bool is_planned = plans_->follows_plan();
  if (is_planned) planned_.bytes = std::max(planned_.bytes, step_peak_);
  planned_.is_all &= is_planned;
  plans_->end_backward();
  is_unbounded_ = false;
  apply_budget();
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
  tape_ = tape;
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
    auto& counter = memory::BudgetAllocator::cpu().counter();
    report_.measured_peak =
        std::max({window_peak_, std::exchange(pending_peak_, 0), counter.take_call_peak()});
    window_peak_ = window_is_open ? report_.measured_peak : 0;
    is_reported_ = true;
    report_.now = counter.live();
  }
  if (updated) log_once(steps);
  if (!window_is_open) planned_ = {};
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

// With plans once they are settled: what the steps before them did is not what training does.
void MemoryStrategy::log_once(const memory::BudgetPlans::Steps& steps) {
  if (!has_logged_memory_ && steps.is_settled && !configs_.plan_only) {
    has_logged_memory_ = true;
    log_memory(steps);
  }
  if (has_logged_ || (plans_ && (!steps.is_settled || configs_.plan_only))) return;
  has_logged_ = true;
  if (!tape_) return;  // this rank had no samples
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
  if (!configs_.enable_offload) return;
  if (!steps.offload_note.empty()) {
    log::info("offload", format("0 B offloaded: {}", steps.offload_note));
    return;
  }
  text = format("an update offloaded {}, fetched {}, waited {:.3f} s for the disk",
                byte_size_text(report_.offloaded_bytes), byte_size_text(report_.fetched_bytes),
                report_.offload_stall_s);
  if (report_.offloaded_bytes == 0) {
    text +=
        largest_small_ > 0
            ? format("; the largest value that could be offloaded has {}, and less than {} is kept",
                     byte_size_text(largest_small_), byte_size_text(memory::Offload::kMinBytes))
            : "; the program itself, or the last segment, needs every value that crosses a cut";
  }
  log::info("offload", text);
}

void MemoryStrategy::log_memory(const memory::BudgetPlans::Steps& steps) const {
  auto text = std::string("plain training of this batch");
  if (steps.samples > 0)
    text = format("plain training of {} at once", plural(steps.samples, "sample"));
  text += format(" would take {}{}", steps.is_scaled_up ? "about " : "",
                 byte_size_text(steps.plain_peak));
  text += plans_ ? format("; the budget in force is {}", byte_size_text(plans_->budget()))
                 : std::string("; no budget is in force");
  text += format("; {} used at the peak", byte_size_text(report_.measured_peak));
  if (steps.predicted_peak > 0) {
    if (!planned_.is_all) {
      text += format(", micro-batches without a plan included; {} in those with one",
                     byte_size_text(planned_.bytes));
    }
    text += format(" ({} predicted)", byte_size_text(steps.predicted_peak));
  }
  log::info("memory", text);
}

void MemoryStrategy::forget() {
  file_.reset();
  counted_ = {};
  report_ = {};
  planned_ = {};
  is_unbounded_ = false;
  if (plain_) plain_->forget();
  if (plans_) plans_->forget();
}

}  // namespace fleet
