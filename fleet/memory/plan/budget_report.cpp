// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/budget_report.h"

#include <algorithm>

#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/memory/allocator/budget_amount.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/simulation/plan_simulation.h"

namespace fleet::memory {
namespace {

// "the backward of aten::linear, whose gradients and temporary tensors take 3 MiB": where a plan
// takes the most.
std::string peak_place(const StepProfile& profile, const Plan& plan) {
  const auto prediction = PlanSimulation(profile).predict(plan);
  const auto forward = std::ranges::max_element(prediction.forward);
  const auto backward = std::ranges::max_element(prediction.backward);
  const bool is_backward = forward == prediction.forward.end() ||
                           (backward != prediction.backward.end() && *backward > *forward);
  const auto index =
      is_backward ? prediction.backward.end() - backward - 1 : forward - prediction.forward.begin();
  if (index < 0 || index >= std::ssize(profile.ops)) return "the backward";
  const auto& op = profile.ops[static_cast<size_t>(index)];
  if (!is_backward) {
    return format("the forward of {}, whose results and temporary tensors take {}", op.name,
                  byte_size_text(op.transient));
  }
  return format("the backward of {}, whose gradients and temporary tensors take {}", op.name,
                byte_size_text(op.gradient_bytes + op.backward_transient));
}

std::string time_text(const Plan& plan) {
  return format("{:+.1f} % time", 100 * (plan.predicted_seconds / plan.plain_seconds - 1));
}

}  // namespace

std::string micro_batch_text(int64_t samples) {
  if (samples <= 0) return "a micro-batch";
  return format("a micro-batch of {}", plural(samples, "sample"));
}

std::string plan_text(int64_t samples, int64_t budget, const Plan& plan) {
  auto text =
      format("{} within {}: {}; predicted peak {} (plain training {}), {}",
             micro_batch_text(samples), byte_size_text(budget), plan.describe(),
             byte_size_text(plan.predicted_peak), byte_size_text(plan.plain_peak), time_text(plan));
  if (samples > 0) {
    text +=
        format(", {:.4g} ms a sample", 1e3 * plan.predicted_seconds / static_cast<double>(samples));
  }
  return text;
}

std::string tags_text(const std::vector<MemoryCounter::TagUse>& tags, int64_t bytes) {
  constexpr size_t kMost = 5;
  std::string text;
  int64_t named = 0;
  for (size_t i = 0; i < std::min(tags.size(), kMost); ++i) {
    if (tags[i].bytes * 100 < bytes) break;
    text += format("{}{} {}", i ? ", " : "", tags[i].name, byte_size_text(tags[i].bytes));
    named += tags[i].bytes;
  }
  const auto rest = bytes - named;
  if (text.empty() || rest * 100 > bytes) {
    text += format("{}others {}", text.empty() ? "" : ", ", byte_size_text(rest));
  }
  return text;
}

UsageError too_small_error(const MeasuredStep& step, int64_t budget, const Plan& least,
                           int64_t least_budget) {
  const auto base = step.profile.base;
  return {"memory",
          format("the memory budget of {} is too small: {} takes at least {}, however much is "
                 "recomputed; {} of that are live before the forward ({}), and the peak is in {}",
                 byte_size_text(budget), micro_batch_text(step.samples),
                 byte_size_text(least.predicted_peak), byte_size_text(base),
                 tags_text(step.base_tags, base), peak_place(step.profile, least)),
          format("set memory_budget to at least {}{}", budget_text(least_budget),
                 step.samples == 1 ? ", or use a smaller model" : "")};
}

std::string plain_text(const MeasuredStep& step) {
  const auto plain = keep_everything(step.profile);
  const auto base = step.profile.base;
  auto text = format(
      "plain training of {} takes {} at its peak, in {}: {} are live before the forward ({}), {} "
      "are activations and temporary tensors\n",
      micro_batch_text(step.samples), byte_size_text(plain.predicted_peak),
      peak_place(step.profile, plain), byte_size_text(base), tags_text(step.base_tags, base),
      byte_size_text(plain.predicted_peak - base));
  text += format("  {:<24}{:>14}  {}\n", "memory_budget", "predicted peak", "time against plain");
  const auto row = [&](const std::string& name, const Plan& plan) {
    text +=
        format("  {:<24}{:>14}  {}\n", name, byte_size_text(plan.predicted_peak), time_text(plan));
  };
  for (const int percent : {75, 50, 33, 25}) {
    const auto budget = plain.predicted_peak * percent / 100;
    const auto plan = make_plan(step.profile, {.budget = budget});
    if (!plan) break;
    row(format("\"{}% of plain\"", percent), *plan);
  }
  const auto least = least_memory(step.profile);
  row(format("{} (the least)", budget_text(least.predicted_peak)), least);
  return text;
}

}  // namespace fleet::memory
