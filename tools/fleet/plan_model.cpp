// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/plan_model.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "fleet/applications/applications.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/meta_profile.h"

#include "bench/zoo/zoo.h"

namespace fleet::tool {
namespace {

namespace apps = applications;
using memory::Plan;

memory::PlanOptions plan_options(const PlanModel& model, RecomputeMode mode, int64_t budget = 0) {
  memory::PlanOptions options{.budget = budget};
  if (mode == RecomputeMode::kPlannedWithOffload) options.disk = model.offload();
  return options;
}

// Null: it is an application's preset.
const zoo::Entry* zoo_entry(const std::string& name) {
  const auto entry = std::ranges::find(zoo::entries(), name, &zoo::Entry::name);
  return entry == zoo::entries().end() ? nullptr : &*entry;
}

bool is_text_model(const std::string& name) {
  return apps::preset_named(name).application.samples == apps::SampleKind::kTokens;
}

// Of the least that this mode can do with so many samples.
int64_t least_peak(PlanModel& model, RecomputeMode mode, int64_t samples) {
  const auto& profile = model.profile(samples);
  if (mode == RecomputeMode::kPlain) return memory::keep_everything(profile).predicted_peak;
  if (mode == RecomputeMode::kEveryBlock)
    return memory::recompute_between_checkpoints(profile).predicted_peak;
  return memory::least_memory(profile, plan_options(model, mode)).predicted_peak;
}

}  // namespace

std::vector<std::string_view> plan_model_names() {
  auto names = apps::preset_names();
  for (const auto& net : zoo::entries()) names.push_back(net.name);
  return names;
}

std::string sample_text(const std::string& name, int64_t seq, int64_t image) {
  if (const auto* net = zoo_entry(name)) return std::string(net->what);
  return is_text_model(name) ? format("seq {}", seq) : format("{0} x {0}", image);
}

PlanModel::PlanModel(const PlanModelOptions& options)
    : rates_(options.rates), offload_(options.offload) {
  auto& counter = memory::BudgetAllocator::meta().counter();
  const auto before = counter.live();
  const auto type = options.is_bf16 ? torch::kBFloat16 : torch::kFloat;
  std::shared_ptr<torch::nn::Module> module;
  if (zoo_entry(options.name)) {
    const auto net = zoo::make_net(options.name, {.device = torch::kMeta, .dtype = type});
    module = net;
    loss_ = [net](int64_t samples) {
      net->set_samples(samples);
      return net->loss(/*update=*/1);
    };
  } else {
    const auto model =
        apps::preset_named(options.name)
            .preset.make({.length = is_text_model(options.name) ? options.seq : options.image,
                          .device = torch::kMeta,
                          .dtype = type});
    module = model.module;
    loss_ = [loss = model.loss](int64_t samples) { return mean_of(loss(samples, 1)); };
  }
  for (const auto& parameter : module->parameters()) {
    parameters_ += parameter.numel();
    parameter.mutable_grad() = torch::zeros_like(parameter);
    // Adam's two moments; with bf16, the fp32 master and the other half of an fp32 gradient too.
    for (int i = 0; i < (options.is_bf16 ? 3 : 2); ++i) {
      state_.push_back(torch::empty_like(parameter, torch::kFloat));
    }
    if (options.is_bf16) state_.push_back(torch::empty_like(parameter));
  }
  fixed_bytes_ = counter.live() - before;
}

const memory::StepProfile& PlanModel::profile(int64_t samples) {
  const auto place = profiles_.find(samples);
  if (place != profiles_.end()) return place->second;
  auto profile = memory::profile_on_meta([&] { return loss_(samples); }, rates_);
  return profiles_.emplace(samples, std::move(profile)).first->second;
}

std::string_view name_of(RecomputeMode mode) {
  switch (mode) {
    case RecomputeMode::kPlain:
      return "plain";
    case RecomputeMode::kEveryBlock:
      return "every block";
    case RecomputeMode::kPlanned:
      return "planned";
    case RecomputeMode::kPlannedWithOffload:
      return "planned + offload";
  }
  return "";
}

std::shared_ptr<const Plan> plan_within(PlanModel& model, RecomputeMode mode, int64_t samples,
                                        int64_t budget) {
  const auto& profile = model.profile(samples);
  std::optional<Plan> plan;
  if (mode == RecomputeMode::kPlain) {
    plan = memory::keep_everything(profile);
  } else if (mode == RecomputeMode::kEveryBlock) {
    plan = memory::recompute_between_checkpoints(profile);
  } else {
    plan = memory::make_plan(profile, plan_options(model, mode, budget));
  }
  if (!plan || plan->predicted_peak > budget) return nullptr;
  return std::make_shared<const Plan>(std::move(*plan));
}

// Memory grows evenly with the batch, or nearly so: two batches tell where to look.
LargestBatch largest_batch(PlanModel& model, RecomputeMode mode, int64_t budget) {
  constexpr int64_t kFirst = 4, kSecond = 8;
  LargestBatch best;
  const auto fits = [&](int64_t samples) {
    auto plan = plan_within(model, mode, samples, budget);
    if (!plan) return false;
    best = {samples, std::move(plan)};
    return true;
  };
  const auto first = static_cast<double>(least_peak(model, mode, kFirst));
  const auto second = static_cast<double>(least_peak(model, mode, kSecond));
  const double slope = std::max((second - first) / (kSecond - kFirst), 1.0);
  const auto guess = kFirst + static_cast<int64_t>((static_cast<double>(budget) - first) / slope);
  int64_t low = 0, high = 0;  // the largest that fits, the smallest that does not
  for (int64_t n = std::max<int64_t>(guess, 1), step = 1; high == 0; n += step, step *= 2) {
    if (fits(n)) {
      low = n;
    } else {
      high = n;
    }
  }
  for (int64_t step = 1; low == 0 && high > 1; step *= 2) {
    const int64_t n = std::max<int64_t>(high - step, 1);
    if (fits(n)) {
      low = n;
    } else {
      high = n;
    }
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return best;
}

}  // namespace fleet::tool
