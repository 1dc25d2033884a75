#include "fleet/memory/budget_plans.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>

#include "fleet/core/byte_size.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/memory/planner.h"

namespace fleet::memory {
namespace {

// Ways to run with little memory before anything is known, tried in turn: segments of such a share
// of what the budget leaves, cut where the program holds so many pieces of memory. Short segments
// keep too much at their cuts, long ones bring too much back at once.
struct Lean {
  int64_t share;
  int live;
};
constexpr std::array kLean = {Lean{4, 2},  Lean{8, 1},  Lean{6, 1},  Lean{4, 1},  Lean{12, 1},
                              Lean{16, 1}, Lean{32, 1}, Lean{64, 2}, Lean{256, 3}};
constexpr int64_t kLeast = 32 << 10;
constexpr int kMeasurements = 4;  // then a program that keeps changing is left as it is
constexpr double kMostMargin = 0.2;
constexpr double kMoreMargin = 0.04;
constexpr double kWorthIt = 0.98;  // of the time of parts twice as large

int64_t machine_bytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  int64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0) {
    bytes = std::min(bytes, limit);
  }
  return bytes;
}

std::string of_samples(int64_t samples) {
  return samples > 0 ? format("a part of {} samples", samples) : "a part";
}

std::string no_plan_text(int64_t samples, int64_t budget) {
  return format("no plan holds {} within {}: it runs with as little memory as it can",
                of_samples(samples), byte_size_text(budget));
}

std::string plan_text(int64_t samples, int64_t budget, const Plan& plan) {
  return format("{} within {}: {}; {} expected at the peak (everything kept: {}), {:+.1f} % time",
                of_samples(samples), byte_size_text(budget), plan.describe(),
                byte_size_text(plan.predicted_peak), byte_size_text(plan.plain_peak),
                100 * (plan.predicted_seconds / plan.plain_seconds - 1));
}

}  // namespace

int64_t budget_bytes(const std::string& text) {
  if (!text.ends_with('%')) return byte_size(text).value_or(0);
  char* end = nullptr;
  const double share = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size() - 1 || !(share > 0 && share <= 100)) return 0;
  return static_cast<int64_t>(static_cast<double>(machine_bytes()) * share / 100);
}

bool BudgetPlans::Entry::is_hopeless() const { return !plan && measured >= kMeasurements; }

BudgetPlans::Forward BudgetPlans::begin(int64_t samples) {
  samples_ = samples;
  auto& entry = entries_[samples];
  running_ = {};
  if (entry.plan) {
    running_.policy = std::make_shared<PlannedPolicy>(entry.plan);
    return running_;
  }
  const auto& lean = kLean[entry.lean];
  const auto segment = std::max(kLeast, (budget_ - counter_.live()) / lean.share);
  running_.policy = std::make_shared<AutomaticCuts>(segment, lean.live, entry.tied);
  // The first step of all meets cold caches and fresh pages.
  if (entry.steps > 0 && entry.measured < kMeasurements) {
    running_.profiler = std::make_shared<Profiler>(counter_);
  }
  return running_;
}

void BudgetPlans::end_forward(const TapeReport& tape) {
  auto& entry = entries_[samples_];
  const auto* planned = dynamic_cast<const PlannedPolicy*>(running_.policy.get());
  if (running_.profiler) entry.saved_bytes = tape.saved_bytes;
  if (!planned) return;
  // Smaller is fine: the plan holds. Larger, or another program, has to be measured.
  const bool is_larger = tape.saved_bytes > entry.saved_bytes + entry.saved_bytes / 100;
  if (!is_larger && !planned->has_diverged()) return;
  log::info("plan",
            planned->has_diverged()
                ? "this forward calls other ops than the one that was planned for"
                : format("this forward saves {}, and {} was planned for",
                         byte_size_text(tape.saved_bytes), byte_size_text(entry.saved_bytes)));
  entry.plan.reset();
  if (entry.measured == kMeasurements) {
    log::warn("plan",
              "the program keeps changing: it runs without a plan from now on, with as "
              "little memory as it can");
  }
}

void BudgetPlans::end_backward() {
  auto& entry = entries_[samples_];
  if (!entry.plan) ++entry.steps;
  if (running_.profiler) {
    entry.profile = std::make_shared<const StepProfile>(running_.profiler->finish());
    ++entry.measured;
    entry.is_tightened = false;
    make(entry);
  }
  running_ = {};
}

void BudgetPlans::make(Entry& entry) {
  const auto limit = budget_ - static_cast<int64_t>(static_cast<double>(budget_) * entry.margin);
  auto plan = make_plan(*entry.profile, {.budget = limit, .disk = disk_});
  if (!plan) {
    entry.plan.reset();
    entry.measured = kMeasurements;
    log::info("plan", no_plan_text(samples_, budget_));
    return;
  }
  log::info("plan", plan_text(samples_, budget_, *plan));
  entry.plan = std::make_shared<const Plan>(std::move(*plan));
}

void BudgetPlans::forget() { running_ = {}; }

bool BudgetPlans::tighten() {
  auto& entry = entries_[samples_];
  if (!entry.plan) {
    if (entry.lean + 1 == kLean.size()) return false;
    ++entry.lean;
    return true;
  }
  // Once more to spare; if that was not it, what was measured no longer holds.
  if (!std::exchange(entry.is_tightened, true) && entry.margin + kMoreMargin <= kMostMargin) {
    entry.margin += kMoreMargin;
    make(entry);
    if (entry.plan) return true;
  }
  entry.plan.reset();
  entry.is_tightened = false;
  return entry.measured < kMeasurements;
}

std::shared_ptr<const Plan> BudgetPlans::plan(int64_t samples) const {
  const auto place = entries_.find(samples);
  return place == entries_.end() ? nullptr : place->second.plan;
}

int64_t BudgetPlans::quickest_part(int64_t largest) const {
  const auto seconds_per_sample = [](int64_t samples, const Plan& plan) {
    return plan.predicted_seconds / static_cast<double>(samples);
  };
  for (int64_t samples = largest;;) {
    const auto here = plan(samples);
    const int64_t half = (samples + 1) / 2;
    if (!here || half == samples || here->predicted_seconds <= here->plain_seconds) return samples;
    const auto tried = entries_.find(half);
    if (tried != entries_.end() && tried->second.is_hopeless()) return samples;
    const auto smaller = plan(half);
    if (!smaller) return half;
    if (seconds_per_sample(half, *smaller) > kWorthIt * seconds_per_sample(samples, *here)) {
      return samples;
    }
    samples = half;
  }
}

std::string BudgetPlans::summary() const {
  std::string text;
  const auto last = entries_.find(samples_);
  if (last == entries_.end() || !last->second.profile) return text;
  for (const auto& [samples, entry] : entries_) {
    if (!entry.profile) continue;  // it never got through a step
    text +=
        (entry.plan ? plan_text(samples, budget_, *entry.plan) : no_plan_text(samples, budget_)) +
        "\n";
    if (entry.plan) {
      text += format("  a part takes {:.3f} s by this plan, {:.3f} s with everything kept\n",
                     entry.plan->predicted_seconds, entry.plan->plain_seconds);
    }
  }
  return text;
}

}  // namespace fleet::memory
