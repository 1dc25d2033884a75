// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/budget_plans.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fleet/core/log.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_exceeded.h"
#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/plan/budget_report.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/simulation/plan_simulation.h"

namespace fleet::memory {
namespace {

constexpr int kMeasurements = 4;  // then a program that keeps changing is not planned any more
constexpr double kMaxMargin = 0.2;
constexpr double kMoreMargin = 0.04;
constexpr double kMinMargin = 0.02;     // above the least that a plan takes
constexpr double kWorthIt = 0.98;       // of the time of micro-batches twice as large
constexpr double kMaxError = 0.05;      // of what is recomputed, as a fraction of plain training
constexpr double kMinError = 0.002;     // seconds; less is not worth another search
constexpr double kWorthAnother = 0.02;  // of plain training, that another plan is quicker
constexpr double kFarthest = 8;  // between two sizes of which one is estimated from the other

std::string no_plan_text(int64_t samples, int64_t budget, int64_t least) {
  return format("no plan holds {} within {}, the least is {}: values are evicted on demand",
                micro_batch_text(samples), byte_size_text(budget), byte_size_text(least));
}

}  // namespace

bool BudgetPlans::Entry::is_infeasible() const { return !plan && measured >= kMeasurements; }

bool BudgetPlans::uses_file(const Entry& entry) const {
  if (!options_.disk.is_known()) return false;
  return entry.plan && entry.plan->offloaded_bytes > 0;
}

bool BudgetPlans::prepare(int64_t samples) {
  samples_ = samples;
  auto& entry = entries_[samples];
  if (!entry.profile && entry.steps == 0) estimate(entry);
  return uses_file(entry);
}

bool BudgetPlans::is_estimated(int64_t samples) const {
  const auto place = entries_.find(samples);
  return place != entries_.end() && place->second.estimated_from > 0;
}

// From the nearest size that has a plan of its own.
void BudgetPlans::estimate(Entry& entry) {
  const Entry* nearest = nullptr;
  double factor = 0;
  const auto distance = [](double ratio) { return std::max(ratio, 1 / ratio); };
  for (const auto& [samples, other] : entries_) {
    if (samples == 0 || samples == samples_ || !other.plan || other.estimated_from > 0) continue;
    const auto ratio = static_cast<double>(samples_) / static_cast<double>(samples);
    if (distance(ratio) > kFarthest) continue;
    if (nearest && distance(ratio) >= distance(factor)) continue;
    nearest = &other;
    factor = ratio;
    entry.estimated_from = samples;
  }
  if (samples_ == 0 || !nearest) return;
  entry.profile = std::make_shared<const StepProfile>(nearest->profile->scaled(factor));
  entry.base_tags = nearest->base_tags;
  entry.saved_bytes = static_cast<int64_t>(factor * static_cast<double>(nearest->saved_bytes));
  make(entry);
}

BudgetPlans::Forward BudgetPlans::begin(Restart restart) {
  samples_of_steps_ += samples_;
  sizes_.insert(samples_);
  auto& entry = entries_[samples_];
  restart_ = restart;
  running_ = {.backwards = std::make_shared<BackwardCounter>()};
  if (entry.plan) {
    running_.policy = std::make_shared<PlannedPolicy>(entry.plan);
    if (entry.estimated_from == 0) {
      if (!entry.is_checked) running_.replays = std::make_shared<ReplayTimes>();
      return running_;
    }
  } else {
    running_.is_unbounded = std::exchange(entry.is_unbounded, false);
    running_.policy = std::make_shared<EvictOnDemand>();
  }
  // The very first step has cold caches and page faults.
  const bool is_warm = entry.steps > 0 && entry.measured < kMeasurements;
  is_measured_ = is_warm || running_.is_unbounded;
  const bool may_exceed = restart_ == Restart::kNever && !entry.plan && !entry.was_unbounded;
  if (is_measured_ || may_exceed) {
    entry.base_tags = counter_.largest_tags(SIZE_MAX);
    running_.profiler = std::make_shared<Profiler>(counter_);
  }
  return running_;
}

void BudgetPlans::end_forward(const TapeReport& tape) {
  auto& entry = entries_[samples_];
  const auto* planned = dynamic_cast<const PlannedPolicy*>(running_.policy.get());
  const auto planned_for =
      running_.profiler ? std::exchange(entry.saved_bytes, tape.saved_bytes) : entry.saved_bytes;
  if (!planned) return;
  // With less to save the plan still holds. With more it is made for that from now on.
  if (!planned->has_diverged()) {
    if (tape.saved_bytes <= planned_for + planned_for / 100) return;
    entry.why_again = format("the forward saves {}, and {} was planned for",
                             byte_size_text(tape.saved_bytes), byte_size_text(planned_for));
    if (!running_.profiler) entry.saved_now = tape.saved_bytes;
    return;
  }
  entry.why_again = "the forward calls other ops than the one that was planned for";
  entry.plan.reset();
  if (entry.measured == kMeasurements) {
    log::warn("plan",
              "the program keeps changing: it runs without a plan from now on, and values are "
              "evicted on demand");
  }
}

void BudgetPlans::pause() {
  if (running_.profiler) running_.profiler->pause();
}

bool BudgetPlans::exceed() {
  const auto place = entries_.find(samples_);
  if (!running_.policy || place == entries_.end()) return false;
  auto& entry = place->second;
  if (entry.plan || running_.is_unbounded || restart_ == Restart::kHere) return false;
  if (entry.least) {
    throw BudgetExceeded({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                         too_small(entry).what());
  }
  if (restart_ != Restart::kNever || !running_.profiler || options_.limit <= budget_) return false;
  running_.is_unbounded = is_measured_ = entry.was_unbounded = true;
  if (options_.logs_plans) {
    log::info("plan", format("{} does not fit within {} by evicting values: it goes on beyond, up "
                             "to {}, to find out what it takes",
                             micro_batch_text(samples_), byte_size_text(budget_),
                             byte_size_text(options_.limit)));
  }
  return true;
}

bool BudgetPlans::follows_plan() const {
  const auto* planned = dynamic_cast<const PlannedPolicy*>(running_.policy.get());
  return planned && !planned->has_diverged();
}

void BudgetPlans::end_backward() {
  auto& entry = entries_[samples_];
  const auto followed = entry.plan;
  entry.is_followed = followed != nullptr;
  if (!entry.plan || entry.estimated_from > 0) ++entry.steps;
  const auto run = std::exchange(running_, {});
  if (const auto saved = std::exchange(entry.saved_now, 0); saved > 0 && entry.plan) {
    const auto factor = static_cast<double>(saved) / static_cast<double>(entry.saved_bytes);
    entry.profile = std::make_shared<const StepProfile>(entry.profile->scaled(factor));
    entry.saved_bytes = saved;
    make(entry);
    if (!entry.plan) entry.measured = std::min(entry.measured, kMeasurements - 1);
  }
  const auto graph = run.backwards ? run.backwards->use() : GraphUse();
  const bool takes_more = include(entry, graph);
  // Where others of this size take more, that is what counts.
  const bool is_measured =
      std::exchange(is_measured_, false) && run.profiler && graph.covers(entry.graph);
  if (takes_more && !is_measured) make(entry);
  if (run.replays && followed && entry.plan == followed) check_times(entry, *run.replays);
  if (!is_measured) return;
  if (std::exchange(entry.estimated_from, 0) > 0 && entry.plan && entry.why_again.empty()) {
    entry.why_again = "that one was estimated, and this one is measured";
  }
  auto profile = run.profiler->finish();
  profile.graph = graph;
  entry.profile = std::make_shared<const StepProfile>(std::move(profile));
  ++entry.measured;
  entry.is_tightened = entry.is_checked = false;
  make(entry);
  if (entry.plan || !run.is_unbounded || entry.can_split) return;
  throw too_small(entry);
}

// True where the plan was made for less use of the graph: the profile is for this now.
bool BudgetPlans::include(Entry& entry, const GraphUse& use) {
  entry.graph.include(use);
  if (!entry.plan || entry.profile->graph.covers(entry.graph)) return false;
  auto profile = std::make_shared<StepProfile>(*entry.profile);
  profile->graph = entry.graph;
  entry.profile = std::move(profile);
  entry.why_again = entry.graph.backwards > 1
                        ? format("its graph is kept for {} backwards", entry.graph.backwards)
                        : std::string("its graph is kept behind its backward");
  return true;
}

// With the times of the first step that followed the plan another may be quicker. Of plans that
// offload it cannot be told what waited for the disk.
void BudgetPlans::check_times(Entry& entry, const ReplayTimes& replays) {
  if (std::exchange(entry.is_checked, true) || entry.plan->offloaded_bytes > 0) return;
  const auto plain = entry.plan->plain_seconds;
  const auto predicted = entry.plan->predicted_seconds - plain;
  const auto error = std::abs(replays.seconds() - predicted);
  if (error < kMinError || error < kMaxError * plain) return;
  auto profile = std::make_shared<StepProfile>(*entry.profile);
  replays.write_into(*profile, &StepProfile::Op::replay_seconds);
  entry.profile = std::move(profile);
  auto before = *entry.plan;
  PlanSimulation(*entry.profile).predict_into(before);
  auto other = better_plan(entry, limit_of(entry));
  if (!other || other->predicted_seconds > before.predicted_seconds - kWorthAnother * plain) {
    entry.plan = std::make_shared<const Plan>(std::move(before));
    return;
  }
  const auto why = format(
      "replaces the plan before it, since that recomputed for {:.0f} % of the time of plain "
      "training, and {:.0f} % were predicted: ",
      100 * replays.seconds() / plain, 100 * predicted / plain);
  if (options_.logs_plans) log::info("plan", why + plan_text(samples_, budget_, *other));
  entry.plan = std::make_shared<const Plan>(std::move(*other));
  entry.is_followed = false;
}

std::optional<Plan> BudgetPlans::plan_for(const Entry& entry, int64_t limit, bool with_file) const {
  const auto more = with_file ? options_.staging : 0;
  auto plan = make_plan(*entry.profile, {.budget = limit - more,
                                         .disk = with_file ? options_.disk : OffloadFile::Speed()});
  if (!plan) return plan;
  plan->budget = limit;
  plan->predicted_peak += more;
  return plan;
}

int64_t BudgetPlans::limit_of(const Entry& entry) const {
  return budget_ - static_cast<int64_t>(static_cast<double>(budget_) * entry.margin);
}

// A file is used where it makes the step quicker, or possible.
std::optional<Plan> BudgetPlans::better_plan(Entry& entry, int64_t limit) const {
  auto without = plan_for(entry, limit, /*with_file=*/false);
  if (!options_.disk.is_known()) return without;
  entry.offload_note.clear();
  if (without && without->predicted_peak >= without->plain_peak) {
    entry.offload_note = "everything fits without it";
    return without;
  }
  auto with = plan_for(entry, limit, /*with_file=*/true);
  if (with && with->offloaded_bytes == 0) {
    with->predicted_peak -= options_.staging;  // without staging
    if (!without) without = with;
    with.reset();
    entry.offload_note = format("no value of at least {} could wait in the file long enough",
                                byte_size_text(Offload::kMinBytes));
  }
  if (!with || (without && without->predicted_seconds <= with->predicted_seconds)) {
    if (with) entry.offload_note = "the plan without it is predicted to be as fast";
    return without;
  }
  return with;
}

Plan BudgetPlans::least_plan(const Entry& entry) const {
  auto least = least_memory(*entry.profile);
  if (!options_.disk.is_known()) return least;
  auto with = least_memory(*entry.profile, {.disk = options_.disk});
  with.predicted_peak += options_.staging;
  return with.predicted_peak < least.predicted_peak ? with : least;
}

// Where no plan holds the budget.
UsageError BudgetPlans::too_small(const Entry& entry) const {
  const auto least = static_cast<double>(entry.least->predicted_peak) / (1 - kMinMargin);
  return too_small_error({*entry.profile, samples_, entry.base_tags}, budget_, *entry.least,
                         static_cast<int64_t>(least));
}

// By the size of micro-batch that was measured first; it stays for all.
void BudgetPlans::resolve(const Entry& entry) {
  if (std::exchange(is_resolved_, true)) return;
  budget_ =
      static_cast<int64_t>(static_cast<double>(entry.plain_peak) * options_.fraction_of_plain);
  log::info("memory", format("plain training of {} takes {}: the budget is {:g}% of that, {}",
                             micro_batch_text(samples_), byte_size_text(entry.plain_peak),
                             100 * options_.fraction_of_plain, byte_size_text(budget_)));
}

void BudgetPlans::make(Entry& entry) {
  entry.plain_peak = keep_everything(*entry.profile).predicted_peak;
  resolve(entry);
  auto plan = better_plan(entry, limit_of(entry));
  const auto why = std::exchange(entry.why_again, {});
  auto prefix =
      why.empty() ? std::string() : format("replaces the plan before it, since {}: ", why);
  if (entry.estimated_from > 0) {
    prefix += format("estimated from {}: ", micro_batch_text(entry.estimated_from));
  }
  entry.is_followed = false;
  entry.least.reset();
  if (!plan) {
    entry.plan.reset();
    if (std::exchange(entry.estimated_from, 0) > 0) {  // it is measured instead
      entry.profile.reset();
      entry.plain_peak = 0;
      return;
    }
    entry.measured = kMeasurements;
    entry.least = least_plan(entry);
    if (options_.logs_plans) {
      log::info("plan", prefix + no_plan_text(samples_, budget_, entry.least->predicted_peak));
    }
    return;
  }
  if (options_.logs_plans) log::info("plan", prefix + plan_text(samples_, budget_, *plan));
  entry.plan = std::make_shared<const Plan>(std::move(*plan));
}

void BudgetPlans::begin_window() {
  samples_of_steps_ = 0;
  sizes_.clear();
}

void BudgetPlans::forget() {
  running_ = {};
  begin_window();
}

bool BudgetPlans::tighten(bool can_split) {
  auto& entry = entries_[samples_];
  const auto run = std::exchange(running_, {});
  entry.can_split = can_split;
  if (run.backwards && include(entry, run.backwards->use())) {
    make(entry);
    if (entry.plan) return true;
  }
  if (!entry.plan) {
    // Nothing was left to evict. A file may still hold it.
    const bool may_help = options_.disk.is_known() || !can_split;
    if (!may_help || entry.was_unbounded || options_.limit <= budget_) return false;
    entry.is_unbounded = entry.was_unbounded = true;
    return true;
  }
  // A larger margin once; then the measurement is no longer valid.
  if (!std::exchange(entry.is_tightened, true) && entry.margin + kMoreMargin <= kMaxMargin) {
    entry.margin += kMoreMargin;
    entry.why_again =
        format("memory was short; {:.0f} % of the budget are kept free now", 100 * entry.margin);
    make(entry);
    if (entry.plan) return true;
  }
  entry.why_again = "memory was short with it";
  entry.plan.reset();
  entry.is_tightened = false;
  return true;  // by eviction on demand
}

std::shared_ptr<const Plan> BudgetPlans::plan(int64_t samples) const {
  const auto place = entries_.find(samples);
  return place == entries_.end() ? nullptr : place->second.plan;
}

std::shared_ptr<const StepProfile> BudgetPlans::profile(int64_t samples) const {
  const auto place = entries_.find(samples);
  return place == entries_.end() ? nullptr : place->second.profile;
}

int64_t BudgetPlans::fastest_micro_batch(int64_t largest) const {
  const auto seconds_per_sample = [](int64_t samples, const Plan& plan) {
    return plan.predicted_seconds / static_cast<double>(samples);
  };
  const auto is_infeasible = [&](int64_t samples) {
    const auto tried = entries_.find(samples);
    return tried != entries_.end() && tried->second.is_infeasible();
  };
  for (int64_t samples = largest;;) {
    const auto here = plan(samples);
    const int64_t half = (samples + 1) / 2;
    const bool may_be_slow = here ? here->predicted_seconds > here->plain_seconds
                                  : is_infeasible(samples);  // evicted on demand, unplanned
    if (half == samples || !may_be_slow) return samples;
    if (here && is_infeasible(half)) return samples;
    const auto smaller = plan(half);
    if ((!smaller || is_estimated(half)) && !is_infeasible(half)) return half;
    if (here &&
        seconds_per_sample(half, *smaller) > kWorthIt * seconds_per_sample(samples, *here)) {
      return samples;
    }
    samples = half;
  }
}

BudgetPlans::Steps BudgetPlans::steps() const {
  Steps steps{.samples = samples_of_steps_, .is_settled = !sizes_.empty()};
  for (const auto size : sizes_) {
    const auto& entry = entries_.at(size);
    steps.sizes.push_back(size);
    const bool is_final = entry.is_followed && entry.estimated_from == 0;
    steps.is_settled &= is_final || entry.is_infeasible();
    if (entry.plan) {
      steps.predicted_peak = std::max(steps.predicted_peak, entry.plan->predicted_peak);
    }
    steps.largest = size;  // they are in order
    steps.offload_note = entry.offload_note;
    steps.plain_peak = entry.plain_peak;
  }
  if (steps.plain_peak > 0 && steps.samples > steps.largest) {
    const auto& entry = entries_.at(steps.largest);
    const auto base = entry.profile->base;
    const auto times = static_cast<double>(steps.samples) / static_cast<double>(steps.largest);
    steps.is_scaled_up = true;
    steps.plain_peak =
        base + static_cast<int64_t>(static_cast<double>(steps.plain_peak - base) * times);
  }
  return steps;
}

std::string BudgetPlans::summary(const std::vector<int64_t>& sizes) const {
  std::string text;
  for (const auto size : sizes) {
    const auto& entry = entries_.at(size);
    if (!entry.plan) {
      text += no_plan_text(size, budget_, least_plan(entry).predicted_peak) + "\n";
      continue;
    }
    text += plan_text(size, budget_, *entry.plan) + "\n";
    text += format("  predicted: {:.3f} s by this plan, {:.3f} s for plain training\n",
                   entry.plan->predicted_seconds, entry.plan->plain_seconds);
    if (!entry.offload_note.empty()) {
      text += format("  offload is not used: {}\n", entry.offload_note);
    }
  }
  return text;
}

std::string BudgetPlans::plain_summary(int64_t samples) const {
  const auto& entry = entries_.at(samples);
  return plain_text({*entry.profile, samples, entry.base_tags});
}

}  // namespace fleet::memory
