// SPDX-License-Identifier: Apache-2.0
// Nets of the shapes that people train, within a fraction of their activations: bit for bit as
// plain training, whether values are evicted on demand or by a plan.

#include "bench/zoo/zoo.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/allocator/budget_exceeded.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/tape/policies.h"

#include "tests/memory/equal_tensors.h"

namespace fleet::memory {
namespace {

class ZooTest : public ::testing::TestWithParam<size_t> {
 protected:
  struct Step {
    int64_t peak = 0;  // above what was live before
    std::vector<torch::Tensor> values;
    TapeReport tape;
  };

  ZooTest() {
    at::set_num_threads(1);
    torch::manual_seed(1);
    net_ = entry().make({.samples = few()});
    net_->train();
    for (const auto& parameter : net_->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    for (const auto& buffer : net_->buffers()) buffers_.push_back(buffer.clone());
    step(nullptr, 0);  // buffers that LibTorch makes once
  }

  const zoo::Entry& entry() const { return zoo::entries()[GetParam()]; }
  // Nets whose first layers make up most of their activations do not fit into half.
  std::vector<int64_t> percents() const {
    const bool is_wide_at_first = entry().name == "squeezenet" || entry().name == "vgg11-bn";
    return is_wide_at_first ? std::vector<int64_t>{70, 60} : std::vector<int64_t>{50, 25};
  }
  int64_t few() const { return entry().name == "changing" ? 128 : 4; }

  Step step(TapePolicy* policy, int64_t update, std::optional<int64_t> room = std::nullopt,
            const std::shared_ptr<Profiler>& profiler = nullptr) {
    torch::manual_seed(7);
    net_->zero_grad(/*set_to_none=*/false);
    {
      const torch::NoGradGuard no_grad;
      size_t i = 0;
      for (const auto& buffer : net_->buffers()) buffer.copy_(buffers_[i++]);
    }
    Step result;
    const auto live = counter_.live();
    counter_.reset_peaks();
    std::optional<BudgetScope> budget;
    if (room) budget.emplace(counter_, live + *room);
    {
      torch::Tensor loss;
      std::optional<TapeScope> scope;
      if (policy) scope.emplace(*policy, profiler);
      loss = net_->loss(update);
      if (scope) {
        scope->tape().end();
        result.tape = scope->tape().report();
        scope.reset();
      }
      loss.backward();
      result.values.push_back(loss.detach());
    }
    result.peak = counter_.peak() - live;
    budget.reset();
    for (const auto& parameter : net_->parameters()) {
      result.values.push_back(parameter.grad().clone());
    }
    for (const auto& buffer : net_->buffers()) result.values.push_back(buffer.clone());
    result.values.push_back(torch::rand({4}));  // the generator is where it would be
    return result;
  }

  BudgetAllocatorScope on_{BudgetAllocator::cpu()};
  MemoryCounter& counter_ = BudgetAllocator::cpu().counter();
  std::shared_ptr<zoo::Net> net_;
  std::vector<torch::Tensor> buffers_;
};

// What nobody has seen before gets through its first step.
TEST_P(ZooTest, EvictsOnDemandWithinAFractionOfItsActivations) {
  for (const int64_t update : {0, 1}) {
    const auto plain = step(nullptr, update);
    for (const int64_t percent : percents()) {
      const auto room = plain.peak * percent / 100;
      SCOPED_TRACE(format("{} of {} bytes", room, plain.peak));
      EvictOnDemand policy;
      try {
        const auto ours = step(&policy, update, room);
        EXPECT_LE(ours.peak, room);
        expect_equal(ours.values, plain.values);
      } catch (const BudgetExceeded&) {
        // Nothing else would do either: the program itself holds too much.
        compat::flush_failed_backward();
        EXPECT_LE(percent, 50);
        const auto profiler = std::make_shared<Profiler>(counter_);
        const auto live = counter_.live();
        step(&policy, update, std::nullopt, profiler);
        EXPECT_GT(least_memory(profiler->finish()).predicted_peak - live, room * 9 / 10);
      }
    }
  }
}

TEST_P(ZooTest, IsPlannedFromAStepThatEvictedOnDemand) {
  if (entry().changes) GTEST_SKIP() << "no plan holds for the next update";
  const auto plain = step(nullptr, 1);
  const auto room = plain.peak * percents().front() / 100;
  EvictOnDemand policy;
  const auto profiler = std::make_shared<Profiler>(counter_);
  const auto live = counter_.live();
  step(&policy, 0, room, profiler);
  const auto profile = profiler->finish();
  const auto plan = make_plan(profile, {.budget = live + room});
  ASSERT_TRUE(plan) << least_memory(profile).predicted_peak - live << " of " << plain.peak;
  PlannedPolicy planned(std::make_shared<const Plan>(*plan));
  const auto ours = step(&planned, 1);
  SCOPED_TRACE(plan->describe());
  EXPECT_FALSE(planned.has_diverged());
  EXPECT_LE(static_cast<double>(ours.peak), 1.02 * static_cast<double>(room));
  expect_equal(ours.values, plain.values);
}

INSTANTIATE_TEST_SUITE_P(Nets, ZooTest, ::testing::Range<size_t>(0, zoo::entries().size()),
                         [](const auto& info) {
                           std::string name(zoo::entries()[info.param].name);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace fleet::memory
