// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/profile/meta_profile.h"

#include <functional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fleet/applications/bert.h"
#include "fleet/applications/data/synthetic.h"
#include "fleet/core/error.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/op_cost.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/tape/policies.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::memory {
namespace {

constexpr MachineRates kRates{.flops = 1e12, .bytes = 1e11};

applications::BertOptions tiny(torch::Device device) {
  return {
      .vocab = 500, .hidden = 64, .layers = 3, .heads = 4, .intermediate = 256, .device = device};
}

// Of a step as it would be planned for, with gradients in place.
StepProfile profile_of(torch::Device device) {
  auto& allocator = device.is_meta() ? BudgetAllocator::meta() : BudgetAllocator::cpu();
  const BudgetAllocatorScope counting(allocator);
  const auto options = tiny(device);
  applications::Bert model(options);
  for (const auto& parameter : model.parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  auto batch = applications::synthetic_batch(options, 8, 1, 128);
  // As many masked tokens as the meta batch has.
  const auto masked = 8 * (128 * 15 / 100);
  batch.masked_positions = batch.masked_positions.new_zeros({masked});
  batch.masked_labels = batch.masked_labels.new_zeros({masked});
  if (device.is_meta()) return profile_on_meta([&] { return model.loss(batch); }, kRates);
  StepProfile profile;
  for (int round = 0; round < 2; ++round) {
    const auto profiler = std::make_shared<Profiler>(allocator.counter());
    torch::Tensor loss;
    {
      AutomaticCuts minimal_memory(1 << 20, 2);
      TapeScope scope(minimal_memory, profiler);
      loss = model.loss(batch);
    }
    loss.backward();
    profile = profiler->finish();
  }
  set_times(profile, kRates);  // whatever else this machine does: times choose what plans recompute
  return profile;
}

TEST(MetaProfileTest, AgreesWithAStepThatRan) {
  at::set_num_threads(1);
  const auto meta = profile_of(torch::kMeta);
  const auto cpu = profile_of(torch::kCPU);
  ASSERT_EQ(meta.ops.size(), cpu.ops.size());
  for (size_t k = 0; k < meta.ops.size(); ++k) ASSERT_EQ(meta.ops[k].name, cpu.ops[k].name);
  EXPECT_EQ(meta.checkpoints, cpu.checkpoints);
  EXPECT_EQ(meta.checkpoints.size(), 3U);
  const auto expect_near = [](int64_t a, int64_t b) {
    EXPECT_NEAR(static_cast<double>(a), static_cast<double>(b), 0.05 * static_cast<double>(b));
  };
  expect_near(meta.saved_bytes(), cpu.saved_bytes());
  expect_near(keep_everything(meta).predicted_peak - meta.base,
              keep_everything(cpu).predicted_peak - cpu.base);
  expect_near(recompute_between_checkpoints(meta).predicted_peak - meta.base,
              recompute_between_checkpoints(cpu).predicted_peak - cpu.base);
  expect_near(least_memory(meta).predicted_peak - meta.base,
              least_memory(cpu).predicted_peak - cpu.base);
}

TEST(MetaProfileTest, AllocatesNothing) {
  const BudgetAllocatorScope counting(BudgetAllocator::cpu());
  auto& counter = BudgetAllocator::cpu().counter();
  counter.reset_peaks();
  const auto before = counter.live();
  profile_of(torch::kMeta);
  EXPECT_LT(counter.peak() - before, 64 << 10);  // LibTorch's scalars
}

TEST(MetaProfileTest, CountsProductsAndTraffic) {
  const BudgetAllocatorScope counting(BudgetAllocator::meta());
  const auto x = torch::empty({8, 32}, torch::kMeta).requires_grad_();
  const auto w = torch::empty({16, 32}, torch::kMeta).requires_grad_();
  const auto kernel = torch::empty({4, 3, 5, 5}, torch::kMeta).requires_grad_();
  const auto images = torch::empty({2, 3, 9, 9}, torch::kMeta);
  const auto profile = profile_on_meta(
      [&] { return torch::linear(x, w).tanh().sum() + torch::conv2d(images, kernel).sum(); },
      {.flops = 1e9, .bytes = 1e9});
  const auto op = [&](std::string_view name) {
    return *std::ranges::find(profile.ops, name, &StepProfile::Op::name);
  };
  const auto linear = op("aten::linear");
  EXPECT_EQ(linear.cost.flops, 2.0 * 8 * 16 * 32);
  EXPECT_EQ(linear.cost.bytes, 4.0 * (8 * 32 + 16 * 32 + 8 * 16));
  EXPECT_DOUBLE_EQ(linear.seconds, linear.cost.flops / 1e9);
  EXPECT_EQ(op("aten::tanh").cost.flops, 0);
  EXPECT_DOUBLE_EQ(op("aten::tanh").seconds, 4.0 * (2 * 8 * 16) / 1e9);
  EXPECT_EQ(op("aten::conv2d").cost.flops, 2.0 * (2 * 4 * 5 * 5) * (3 * 5 * 5));
  EXPECT_DOUBLE_EQ(profile.backward_seconds, 2 * profile.forward_seconds);
}

TEST(MetaProfileTest, NamesAnOpThatNeedsNumbers) {
  const BudgetAllocatorScope counting(BudgetAllocator::meta());
  const auto x = torch::empty({4}, torch::kMeta).requires_grad_();
  const auto text_of = [&](const std::function<torch::Tensor()>& loss) {
    return testing::error_message_of([&] { profile_on_meta(loss, kRates); });
  };
  EXPECT_TRUE(says(text_of([&] { return x.masked_select(x > 0).sum(); }),
                   "aten::masked_select cannot run on meta tensors",
                   "recompute_configs.memory_budget"));
  EXPECT_TRUE(says(text_of([&] { return x.sum() * x.nonzero().size(0); }),
                   "aten::nonzero cannot run on meta tensors"));
  EXPECT_TRUE(says(text_of([&] { return x.sum() * x.sum().item<float>(); }),
                   "aten::_local_scalar_dense cannot run on meta tensors"));
  // A mistake of the user's own stays what it is.
  const auto other = torch::empty({3, 3}, torch::kMeta);
  EXPECT_THROW(profile_on_meta(
                   [&] {
                     return torch::mm(x.view({2, 2}), other).sum();
                   },
                   kRates),
               c10::Error);
}

}  // namespace
}  // namespace fleet::memory
