// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/memory/plain_step.h"

#include <algorithm>
#include <utility>

#include "fleet/memory/plan/planner.h"

namespace fleet {

std::shared_ptr<memory::Profiler> PlainStep::begin(memory::MemoryCounter& counter,
                                                   int64_t samples) {
  steps_.samples += samples;
  if (std::ranges::find(steps_.sizes, samples) == steps_.sizes.end()) {
    steps_.sizes.push_back(samples);
  }
  steps_.largest = std::max(steps_.largest, samples);
  if (++forwards_ != 2) return nullptr;
  samples_ = samples;
  profiler_ = std::make_shared<memory::Profiler>(counter);
  return profiler_;
}

void PlainStep::end(int64_t staging) {
  if (!profiler_) return;
  const auto profile = std::exchange(profiler_, nullptr)->finish();
  base_ = profile.base - staging;
  peak_ = memory::keep_everything(profile).predicted_peak - staging;
}

void PlainStep::forget() {
  if (profiler_) forwards_ = 1;
  profiler_.reset();
  steps_ = {};
}

memory::BudgetPlans::Steps PlainStep::of_window(bool window_is_open) {
  auto steps = steps_;
  if (!window_is_open) steps_ = {};
  steps.is_settled = peak_ > 0;
  steps.plain_peak = peak_;
  if (peak_ > 0 && samples_ > 0 && steps.samples > samples_) {
    steps.is_scaled_up = true;
    const auto times = static_cast<double>(steps.samples) / static_cast<double>(samples_);
    steps.plain_peak = base_ + static_cast<int64_t>(static_cast<double>(peak_ - base_) * times);
  }
  return steps;
}

}  // namespace fleet
