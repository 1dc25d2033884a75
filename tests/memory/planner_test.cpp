// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/planner.h"

#include <functional>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/torch.h>

#include "fleet/applications/bert.h"
#include "fleet/applications/data/synthetic.h"
#include "fleet/applications/resnet.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/plan/profile/op_cost.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/plan/simulation/plan_simulation.h"

#include "tests/memory/plain_bert.h"
#include "tests/memory/plans_by_kind.h"
#include "tests/support/patience.h"

namespace fleet::memory {
namespace {

// A stock encoder, as LibTorch ships it.
class StockEncoder : public ::testing::Test {
 protected:
  StockEncoder() : on_(BudgetAllocator::cpu()) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    const auto layer =
        torch::nn::TransformerEncoderLayerOptions(128, 4).dim_feedforward(512).dropout(0.1);
    encoder_ = torch::nn::TransformerEncoder(
        torch::nn::TransformerEncoderOptions(torch::nn::TransformerEncoderLayer(layer), 8));
    input_ = torch::randn({64, 16, 128});
    for (const auto& parameter : encoder_->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
  }

  torch::Tensor loss() { return encoder_->forward(input_).square().mean(); }

  struct Step {
    int64_t peak = 0;  // above what was there before
    std::vector<torch::Tensor> gradients;
    StepProfile profile;
  };

  Step step(TapePolicy* policy, bool measure = false) {
    torch::manual_seed(2);
    encoder_->zero_grad(/*set_to_none=*/false);
    auto& counter = BudgetAllocator::cpu().counter();
    counter.reset_peaks();
    const auto before = counter.live();
    Step result;
    std::shared_ptr<Profiler> profiler;
    torch::Tensor value;
    if (policy) {
      if (measure) profiler = std::make_shared<Profiler>(counter);
      TapeScope scope(*policy, profiler);
      value = loss();
    } else {
      value = loss();
    }
    value.backward();
    result.peak = counter.peak() - before;
    if (profiler) result.profile = profiler->finish();
    for (const auto& parameter : encoder_->parameters()) {
      result.gradients.push_back(parameter.grad().clone());
    }
    return result;
  }

  static bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
    return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return x.equal(y); });
  }

  BudgetAllocatorScope on_;
  torch::nn::TransformerEncoder encoder_{nullptr};
  torch::Tensor input_;
};

TEST_F(StockEncoder, PlansKeepTheirBudgetAndPredictTheirPeak) {
  const auto plain = step(nullptr);
  AutomaticCuts minimal_memory(1 << 18, 1);
  const auto measured = step(&minimal_memory, /*measure=*/true);
  ASSERT_TRUE(equal(measured.gradients, plain.gradients));
  const auto& profile = measured.profile;
  const auto above_base = [&](int64_t peak) { return static_cast<double>(peak - profile.base); };
  const auto everything = keep_everything(profile);
  EXPECT_NEAR(above_base(everything.predicted_peak), static_cast<double>(plain.peak),
              0.02 * static_cast<double>(plain.peak));
  const auto least = least_memory(profile);
  EXPECT_LT(above_base(least.predicted_peak), 0.25 * static_cast<double>(plain.peak));
  EXPECT_FALSE(make_plan(profile, {.budget = least.predicted_peak * 9 / 10}));
  for (const double share : {0.02, 0.1, 0.2, 0.4, 0.6, 0.8}) {
    const auto budget = least.predicted_peak +
                        static_cast<int64_t>(share * static_cast<double>(everything.predicted_peak -
                                                                         least.predicted_peak));
    const auto plan = make_plan(profile, {.budget = budget});
    ASSERT_TRUE(plan) << budget;
    PlannedPolicy policy(std::make_shared<const Plan>(*plan));
    const auto planned = step(&policy);
    SCOPED_TRACE(format("budget {} predicted {} measured {}: {}", budget, plan->predicted_peak,
                        planned.peak + profile.base, plan->describe()));
    EXPECT_FALSE(policy.has_diverged());
    EXPECT_TRUE(equal(planned.gradients, plain.gradients));
    EXPECT_LE(plan->predicted_peak, budget);
    EXPECT_LE(planned.peak + profile.base, budget * 1.01);
    // Of the whole, parameters and gradients included, as a user would count.
    EXPECT_NEAR(static_cast<double>(plan->predicted_peak),
                static_cast<double>(planned.peak + profile.base),
                0.03 * static_cast<double>(planned.peak + profile.base));
  }
}

// A net and a batch for it, its memory counted.
template <typename Model, typename Batch>
class SmallNet {
 public:
  // Of everything, parameters included.
  int64_t peak_of(TapePolicy& policy, const std::shared_ptr<Profiler>& profiler = nullptr,
                  const Offload* offload = nullptr) {
    torch::manual_seed(2);
    model_->zero_grad(/*set_to_none=*/false);
    counter_.reset_peaks();
    torch::Tensor loss;
    {
      TapeScope scope(policy, profiler, offload);
      loss = model_.loss(batch_);
    }
    loss.backward();
    return counter_.peak();
  }

  StepProfile profile(const Offload* offload = nullptr) {
    AutomaticCuts minimal_memory(1 << 18, 2);
    peak_of(minimal_memory, nullptr, offload);
    const auto profiler = std::make_shared<Profiler>(counter_);
    peak_of(minimal_memory, profiler, offload);
    return profiler->finish();
  }

  torch::Tensor gradients() const {
    std::vector<torch::Tensor> flat;
    for (const auto& parameter : model_->parameters()) flat.push_back(parameter.grad().flatten());
    return torch::cat(flat);
  }

  std::vector<std::string> checkpoints() const { return model_->checkpoints(); }

 protected:
  SmallNet() : on_(BudgetAllocator::cpu()) { torch::manual_seed(1); }

  void take(Model model, Batch batch) {
    model_ = std::move(model);
    batch_ = std::move(batch);
    for (const auto& parameter : model_->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
  }

 private:
  BudgetAllocatorScope on_;
  MemoryCounter& counter_ = BudgetAllocator::cpu().counter();
  Model model_{nullptr};
  Batch batch_;
};

class SmallBert : public SmallNet<PlainBert, BertBatch> {
 public:
  SmallBert(int64_t layers, int64_t samples) {
    at::set_num_threads(1);
    applications::BertOptions options;
    options.vocab = 1000;
    options.hidden = 128;
    options.heads = 4;
    options.intermediate = 512;
    options.layers = layers;
    take(PlainBert(options.resolved()), applications::synthetic_batch(options, samples, 1, 256));
  }
};

class SmallResnet : public SmallNet<decltype(applications::Resnet50()), Batch> {
 public:
  SmallResnet(int64_t samples, int64_t side) {
    const auto model = applications::Resnet50();
    take(model, applications::synthetic_batch(model.options(), samples, 1, side));
  }
};

// Norms are added to and activated in place: cut in between, their results could not be recomputed.
TEST(Planner, InPlaceNetIsPlannedAsTightlyAsByItsCheckpoints) {
  SmallResnet resnet(/*samples=*/4, /*side=*/64);
  NamedCuts blocks(resnet.checkpoints());
  resnet.peak_of(blocks);
  const auto by_hand = resnet.peak_of(blocks);
  const auto profile = resnet.profile();
  const auto plan = make_plan(profile, {.budget = by_hand});
  ASSERT_TRUE(plan) << least_memory(profile).predicted_peak << " for " << by_hand;
  PlannedPolicy planned(std::make_shared<const Plan>(*plan));
  EXPECT_LE(resnet.peak_of(planned), by_hand);
  EXPECT_FALSE(planned.has_diverged());
}

template <typename Net>
void expect_no_slower_than_checkpoints(Net& net) {
  const auto profile = net.profile();
  const auto named = recompute_between_checkpoints(profile);
  ASSERT_EQ(named.segments.size(), net.checkpoints().size() + 1);
  const auto plan = make_plan(profile, {.budget = named.predicted_peak});
  ASSERT_TRUE(plan);
  EXPECT_LE(plan->predicted_seconds, named.predicted_seconds);
  PlannedPolicy policy(std::make_shared<const Plan>(*plan));
  EXPECT_LE(static_cast<double>(net.peak_of(policy)),
            1.01 * static_cast<double>(named.predicted_peak));
  EXPECT_FALSE(policy.has_diverged());
}

TEST(Planner, IsNeverSlowerThanTheNetsOwnCheckpointsInTheirMemory) {
  {
    SmallBert bert(/*layers=*/12, /*samples=*/2);
    expect_no_slower_than_checkpoints(bert);
  }
  SmallResnet resnet(/*samples=*/4, /*side=*/64);
  expect_no_slower_than_checkpoints(resnet);
}

// For plans that do not depend on what else this machine does.
constexpr MachineRates kFixedRates{.flops = 4e10, .bytes = 8e9};

template <typename Net>
StepProfile profile_at_fixed_rates(Net& net) {
  auto profile = net.profile();
  set_times(profile, kFixedRates);
  return profile;
}

// Offload follows the plan, from the tightest plan to a roomy one.
template <typename Net>
void expect_peaks_as_predicted(Net& net, const StepProfile& profile, const Offload& offload,
                               const std::vector<double>& shares = {0.01, 0.1, 0.3, 0.6},
                               double least_ratio = 0.99) {
  const OffloadFile::Speed quick{.write = 1e10, .read = 1e10};
  const auto least = least_memory(profile, {.disk = quick}).predicted_peak;
  const auto most = keep_everything(profile).predicted_peak;
  for (const double share : shares) {
    const auto budget = least + static_cast<int64_t>(share * static_cast<double>(most - least));
    const auto plan = make_plan(profile, {.budget = budget, .disk = quick});
    ASSERT_TRUE(plan) << share;
    SCOPED_TRACE(plan->describe());
    EXPECT_GT(plan->offloaded_bytes, 0);
    PlannedPolicy policy(std::make_shared<const Plan>(*plan));
    const auto counted = net.peak_of(policy, nullptr, &offload);
    // Above it a budget would be broken; below it some memory is not used.
    const auto predicted = static_cast<double>(plan->predicted_peak - profile.base);
    EXPECT_LE(static_cast<double>(counted - profile.base), 1.01 * predicted) << share;
    EXPECT_GE(static_cast<double>(counted - profile.base), least_ratio * predicted) << share;
  }
}

TEST(Planner, PeakIsAsPredictedWhereAnInPlaceNetUsesAFile) {
  Offload offload(std::make_shared<OffloadFile>());
  offload.file->measure();  // its own buffers are there
  offload.max_queued = 0;
  SmallResnet resnet(/*samples=*/8, /*side=*/96);
  expect_peaks_as_predicted(resnet, profile_at_fixed_rates(resnet), offload);
}

TEST(Planner, PeakIsAsPredictedWhereATransformerUsesAFile) {
  Offload offload(std::make_shared<OffloadFile>());
  offload.file->measure();
  offload.max_queued = 0;
  SmallBert bert(/*layers=*/6, /*samples=*/12);
  expect_peaks_as_predicted(bert, profile_at_fixed_rates(bert), offload);
}

TEST(Planner, PeakIsAsPredictedWhateverTheDiskDoes) {
  Offload offload(std::make_shared<OffloadFile>());
  offload.file->measure();
  offload.max_queued = 0;
  SmallBert bert(/*layers=*/6, /*samples=*/12);
  const auto profile = profile_at_fixed_rates(bert);
  const auto stalled = offload.file->statistics().stall_seconds;
  // Longer than what the net computes meanwhile.
  offload.file->set_write_delay(
      [] { std::this_thread::sleep_for(launch::patient(std::chrono::milliseconds(20))); });
  expect_peaks_as_predicted(bert, profile, offload, {0.01, 0.1});
  EXPECT_GT(offload.file->statistics().stall_seconds, stalled);
}

// Plans for other machines: each makes other ops dear, and so chooses other cuts.
TEST(Planner, PeakIsAsPredictedWhateverTimesAPlanIsMadeFrom) {
  Offload offload(std::make_shared<OffloadFile>());
  offload.file->measure();
  offload.max_queued = 0;
  SmallBert bert(/*layers=*/6, /*samples=*/12);
  const auto measured = profile_at_fixed_rates(bert);
  for (const unsigned machine : {0U, 1U, 2U, 5U, 16U}) {
    SCOPED_TRACE(machine);
    std::mt19937 random(machine);
    auto profile = measured;
    for (auto& op : profile.ops) {
      op.seconds = 1e-4 * std::exp2(static_cast<double>(random() % 9) - 4);
      op.replay_seconds = op.seconds;
    }
    expect_peaks_as_predicted(bert, profile, offload, {0.01, 0.1}, /*least_ratio=*/0.94);
  }
}

TEST(Planner, OffloadsWhereThereIsAFile) {
  SmallBert bert(/*layers=*/12, /*samples=*/8);
  Offload offload(std::make_shared<OffloadFile>());
  offload.file->measure();  // its own buffers are there
  offload.is_synchronous = true;
  KeepAll keep;
  bert.peak_of(keep);
  const auto plain = bert.gradients();
  const auto plain_peak = bert.peak_of(keep);
  auto profile = bert.profile(&offload);
  set_times(profile, kFixedRates);
  // Offload makes no difference to what is measured.
  EXPECT_NEAR(static_cast<double>(keep_everything(profile).predicted_peak),
              static_cast<double>(plain_peak), 0.02 * static_cast<double>(plain_peak));
  offload.is_synchronous = false;
  offload.max_queued = 0;

  const OffloadFile::Speed quick{.write = 1e10, .read = 1e10}, slow{.write = 1e6, .read = 1e6};
  const auto here = least_memory(profile);
  const auto offloaded = least_memory(profile, {.disk = quick});
  EXPECT_LT(offloaded.predicted_peak - profile.base, (here.predicted_peak - profile.base) * 9 / 10);

  // Where the disk is quick, it is better than to make things again; where it is slow, it is not.
  const auto budget = profile.base + (plain_peak - profile.base) / 3;
  const auto by_recompute = make_plan(profile, {.budget = budget});
  const auto by_file = make_plan(profile, {.budget = budget, .disk = quick});
  const auto by_slow_file = make_plan(profile, {.budget = budget, .disk = slow});
  ASSERT_TRUE(by_recompute && by_file && by_slow_file);
  EXPECT_GT(by_file->offloaded_bytes, 0);
  EXPECT_EQ(by_slow_file->offloaded_bytes, 0);
  EXPECT_LT(by_file->predicted_seconds, by_recompute->predicted_seconds);

  for (const auto& plan : {*by_file, offloaded}) {
    SCOPED_TRACE(plan.describe());
    PlannedPolicy policy(std::make_shared<const Plan>(plan));
    const auto written = offload.file->statistics().bytes_written;
    const auto measured = bert.peak_of(policy, nullptr, &offload);
    EXPECT_FALSE(policy.has_diverged());
    EXPECT_TRUE(bert.gradients().equal(plain));
    EXPECT_LE(measured, plan.predicted_peak + plan.predicted_peak / 100);
    EXPECT_GE(measured, plan.predicted_peak * 9 / 10);
    EXPECT_GT(offload.file->statistics().bytes_written - written, plan.offloaded_bytes / 2);
  }
}

// Where a cut comes between a softmax and its dropout, the result of the softmax waits for both.
TEST(PlanSimulation, HoldsReplayInputsOfLaterSegmentsUntilTheirOwnSegmentIsDone) {
  SmallBert bert(/*layers=*/3, /*samples=*/4);
  const auto profile = bert.profile();
  auto plan = keep_everything(profile);
  plan.segments.back().is_dropped = true;
  for (int k = 0; k < static_cast<int>(profile.ops.size()); ++k) {
    if (profile.ops[static_cast<size_t>(k)].name != "aten::softmax") continue;
    ASSERT_EQ(profile.ops[static_cast<size_t>(k) + 1].name, "aten::dropout");
    plan.segments.push_back({.first_op = k - 10, .is_dropped = true});
    plan.segments.push_back({.first_op = k + 1, .is_dropped = true});
    plan.segments.push_back({.first_op = k + 3, .is_dropped = true});
    plan.recomputed[static_cast<size_t>(k) + 1] = plan.recomputed[static_cast<size_t>(k) + 2] = 1;
  }
  ASSERT_EQ(plan.segments.size(), 1U + 3 * 3);
  const auto predicted = PlanSimulation(profile).predict(plan).peak;
  PlannedPolicy policy(std::make_shared<const Plan>(plan));
  const auto measured = bert.peak_of(policy);
  EXPECT_NEAR(static_cast<double>(predicted - profile.base),
              static_cast<double>(measured - profile.base),
              0.01 * static_cast<double>(measured - profile.base));
}

// The results of one kind of op are recomputed selectively, in one kept segment and in segments of
// which every second is dropped.
TEST(PlanSimulation, PredictsSelectiveRecomputationOfEveryKindOfOp) {
  SmallBert bert(/*layers=*/6, /*samples=*/4);
  const auto profile = bert.profile();
  const PlanSimulation simulation(profile);
  std::set<int64_t> peaks;
  for (const auto& [name, plan] : testing::plans_by_kind(profile, 12)) {
    const auto predicted = simulation.predict(plan).peak;
    PlannedPolicy policy(std::make_shared<const Plan>(plan));
    const auto measured = bert.peak_of(policy);
    EXPECT_LE(std::abs(static_cast<double>(predicted - measured)),
              0.04 * static_cast<double>(measured))
        << name << ": predicted " << predicted << ", measured " << measured;
    peaks.insert(measured);
  }
  EXPECT_GE(peaks.size(), 8U);  // kinds make a difference
}

}  // namespace
}  // namespace fleet::memory
