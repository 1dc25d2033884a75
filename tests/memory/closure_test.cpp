// SPDX-License-Identifier: Apache-2.0
// What a closure may do beside calling layers, under every policy, against plain autograd: bit
// for bit.

#include <thread>

#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/checkpoint.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/recompute.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"
#include "fleet/precision/autocast.h"

#include "tests/memory/closures.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::memory {
namespace {

using fleet::testing::error_message_of;
using namespace closure_test;  // NOLINT

// Of a batch that comes second, where matmul folds the batch only if a gradient is wanted.
TEST_F(Closures, ReplaysTakeTheKernelsOfTheForward) {
  const auto w = leaf({192, 64}), b = leaf({192}), x = leaf({2, 64, 64});
  compare(
      [&] {
        const auto y = checkpoint(torch::linear(x.tanh().transpose(0, 1), w, b), "first");
        return checkpoint(y.square() * y.sin(), "second").square().sum();
      },
      {w, b, x});
}

// The bits may agree on a CPU whose kernels add in the same order: by the ops that are called.
TEST_F(Closures, ReplaysCallTheOpsOfTheForward) {
  const auto w = leaf({192, 64}), b = leaf({192}), x = leaf({2, 64, 64});
  const auto loss = [&] {
    const auto y = torch::linear(x.tanh().transpose(0, 1), w, b);
    return (y.square() * y.sin()).square().sum();
  };
  struct Products {
    int folded = 0, batched = 0;
  };
  const auto products_in = [&](TapePolicy* policy) {
    const OpCounts counts;
    gradients(loss, {w, b, x}, policy);
    return Products{counts.of("aten::mm"), counts.of("aten::bmm")};
  };
  const auto plain = products_in(nullptr);
  AtMarks results_alone(Treatment::kKeep, true);  // by replays without a graph
  const auto replayed = products_in(&results_alone);
  EXPECT_EQ(plain.batched, 0);
  EXPECT_EQ(replayed.batched, 0);
  EXPECT_GT(replayed.folded, plain.folded);
}

TEST_F(Closures, GradientsMayBeTakenInsideTheForward) {
  const auto w = leaf({4, 8}), v = leaf({8, 1});
  const auto points = torch::randn({16, 4});
  // The residual of a differential equation.
  const auto residual = [&] {
    auto x = points.clone().requires_grad_();
    auto h = checkpoint(torch::tanh(torch::matmul(x, w)), "hidden");
    h = torch::dropout(h * h.sigmoid(), 0.2, true);
    const auto u = torch::matmul(h.exp(), v).tanh();
    const auto slope = torch::autograd::grad({u.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    const auto curve =
        torch::autograd::grad({checkpoint(slope, "slope").sin().sum()}, {x}, {}, true, true)[0];
    return (curve.sum(1) + u.squeeze(1).sin()).square().mean();
  };
  compare(residual, {w, v});
  // The gradient penalty of a critic, after a first gradient that is not differentiated.
  const auto penalty = [&] {
    auto x = points.clone().requires_grad_();
    const auto score = [&](const Tensor& z) {
      return torch::matmul(checkpoint(torch::gelu(torch::matmul(z, w)).exp(), "score"), v).tanh();
    };
    const auto step = torch::autograd::grad({score(x).sum()}, {x})[0];
    const auto moved = (x + step * 0.1).detach().requires_grad_();
    const auto value = score(moved);
    const auto slope = torch::autograd::grad({value.sum()}, {moved}, {}, true, true)[0];
    return value.mean() + (slope.norm(2, 1) - 1).square().mean();
  };
  compare(penalty, {w, v});
}

TEST_F(Closures, BackwardInsideTheForwardAddsToGradientsOnce) {
  const auto w = leaf({4, 4});
  const auto x = torch::randn({8, 4});
  compare(
      [&] {
        auto y = checkpoint(torch::matmul(x, w).tanh(), "first");
        y = y * y.sigmoid();
        y.exp().sum().backward({}, /*retain_graph=*/true);
        return checkpoint(y.sin() * w.grad().sum(), "second").square().sum();
      },
      {w});
}

// A custom list of ops, in an Autocast that ends with the forward.
TEST_F(Closures, PrecisionOfAReplayIsThatOfTheForward) {
  const auto x = leaf({8, 8}), w = leaf({8, 8});
  std::optional<precision::Autocast> autocast;
  between_ = [&] {  // another one in its place
    autocast.reset();
    autocast.emplace(precision::AutocastOptions{.custom_black_list = {"matmul", "tanh"}});
  };
  compare(
      [&] {
        autocast.emplace(precision::AutocastOptions{.custom_white_list = {"tanh"},
                                                    .custom_black_list = {"mm", "matmul"}});
        const precision::AutocastScope scope(&*autocast);
        auto y = checkpoint(torch::tanh(torch::matmul(x, w)), "first");
        y = torch::tanh(y * 2) * torch::matmul(y, y).sigmoid();
        return checkpoint(y, "second").to(torch::kFloat).square().sum();
      },
      {x, w});
}

// Parameters of one flat buffer, as an optimizer makes them.
TEST_F(Closures, OneParameterWrittenInPlaceCopiesNoOther) {
  constexpr int64_t kTables = 6;
  const auto flat = torch::randn({kTables * 20});
  std::vector<Tensor> tables;
  for (int64_t i = 0; i < kTables; ++i) {
    tables.push_back(torch::empty({5, 4}).requires_grad_());
    tables.back().set_data(flat.narrow(0, i * 20, 20).view({5, 4}));
  }
  const auto start = flat.clone();
  const auto words = torch::tensor({0, 3, 3, 1});
  const auto loss = [&] {
    {
      const torch::NoGradGuard no_grad;
      flat.copy_(start);
    }
    auto sum = torch::zeros({});
    for (int64_t i = 0; i < kTables; ++i) {
      const auto& table = tables[static_cast<size_t>(i)];
      sum = sum + (table * 2).tanh().sum();
    }
    {
      const torch::NoGradGuard no_grad;
      auto table = tables[2].detach();
      torch::embedding_renorm_(table, words, 0.5, 2);
    }
    return checkpoint(sum, "sum") * torch::embedding(tables[2], words).tanh().sum();
  };
  const auto plain = gradients(loss, tables, nullptr);
  AtMarks policy(Treatment::kDrop);
  const auto before = KeptValue::copies();
  expect_equal(gradients(loss, tables, &policy), plain);
  EXPECT_EQ(KeptValue::copies() - before, 1);
}

// An op during whose first call another thread uses the default generator.
int g_other_threads = 0;
Tensor disturbed(const Tensor& x, bool uses_rng) {
  if (g_other_threads-- > 0) std::thread([] { torch::rand({3}); }).join();
  return uses_rng ? x * torch::rand_like(x) : x * 2;
}

class RandomNumbers : public Closures {
 protected:
  RandomNumbers() {
    static const auto library = [] {
      torch::Library tests(torch::Library::FRAGMENT, "fleet_tests", std::nullopt, __FILE__,
                           __LINE__);
      tests.def("disturbed(Tensor x, bool uses_rng) -> Tensor",
                [](const Tensor& x, bool uses_rng) { return disturbed(x, uses_rng); });
      return tests;
    }();
  }
  static Tensor call(const Tensor& x, bool uses_rng) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fleet_tests::disturbed", "")
                               .typed<Tensor(const Tensor&, bool)>();
    return op.call(x, uses_rng);
  }
};

TEST_F(RandomNumbers, OfAnotherThreadInTheMiddleOfAnOpAreNoticed) {
  const auto x = leaf({6, 6});
  g_other_threads = 1;
  const auto y = recompute([&] { return torch::exp(call(x * 2, true)); });
  const auto text = error_message_of([&] { y.sum().backward(); });
  EXPECT_TRUE(says(text, "fleet_tests::disturbed", "another thread", "generator"));
  compat::flush_failed_backward();
  g_other_threads = 0;
  const auto again = recompute([&] { return torch::exp(call(x * 2, true)); });
  EXPECT_EQ(error_message_of([&] { again.sum().backward(); }), "");
}

TEST_F(RandomNumbers, OfAnotherThreadDoNotMatterToAnOpThatUsesNone) {
  const auto x = leaf({6, 6});
  g_other_threads = 1;
  const auto y = recompute([&] { return torch::exp(call(x * 2, false)); });
  EXPECT_EQ(error_message_of([&] { y.sum().backward(); }), "");
}

TEST_F(RandomNumbers, OfAnotherThreadDuringAReplayAreNotRepeated) {
  const auto x = leaf({6, 6});
  g_other_threads = 0;
  const auto y = recompute([&] { return torch::exp(call(torch::dropout(x, 0.5, true), false)); });
  torch::manual_seed(3);
  torch::rand({3});
  const auto expected = torch::rand({2});
  torch::manual_seed(3);
  g_other_threads = 1;  // when it is called again
  y.sum().backward();
  EXPECT_TRUE(torch::rand({2}).equal(expected));
}

// An error inside of `recompute` under a plan leaves the tape with a mask to remember and no memory
// for that.
TEST_F(Closures, AForwardThatRunsOutOfMemoryEndsWithThatError) {
  const BudgetAllocatorScope counting(BudgetAllocator::cpu());
  auto& counter = BudgetAllocator::cpu().counter();
  const auto x = leaf({64, 64});
  const auto layers = [&] { return torch::dropout(x * 2, 0.3, true).exp(); };
  torch::manual_seed(7);
  layers().sum().backward();
  const auto plain = std::exchange(x.mutable_grad(), Tensor());
  const auto before = counter.live();
  {
    Tensor y;
    torch::manual_seed(7);
    EXPECT_THROW(
        {
          AtMarks policy(Treatment::kEvictEagerly);
          TapeScope scope(policy);
          recompute([&] {
            y = layers();
            counter.set_budget(1);
            return y * y;
          });
        },
        c10::OutOfMemoryError);
    counter.set_budget(std::nullopt);
    y.sum().backward();  // what there is of it is as good as ever
    EXPECT_TRUE(x.grad().equal(plain));
    x.mutable_grad() = Tensor();
  }
  EXPECT_EQ(counter.live(), before);
  EXPECT_EQ(Region::alive(), 0);
}

// A block of a net, recomputed by hand, and a plan with cuts before, at, inside and behind it.
TEST_F(Closures, PlansCutAroundACallOfRecomputeAndContinueBehindIt) {
  const auto x = leaf({8, 8});
  const auto loss = [&] {
    auto y = x * 1;
    for (int i = 0; i < 3; ++i) {
      y = (y + 1).tanh();                                                     // 2 ops
      y = recompute([](const Tensor& z) { return (z * z).sin().exp(); }, y);  // 3 ops
      y = (y * 0.5).sigmoid();                                                // 2 ops
    }
    return y.sum();
  };
  const auto plain = gradients(loss, {x}, nullptr);
  AtMarks keep(Treatment::kKeep);
  const BudgetAllocatorScope counting(BudgetAllocator::cpu());
  const auto profiler = std::make_shared<Profiler>(BudgetAllocator::cpu().counter());
  {
    TapeScope scope(keep, profiler);
    loss();
  }
  const auto profile = profiler->finish();
  ASSERT_EQ(profile.ops.size(), 1U + 3 * 7 + 1);
  for (int first = 1; first < 22; ++first) {
    SCOPED_TRACE(first);
    auto plan = keep_everything(profile);
    plan.segments.back().is_dropped = true;
    plan.segments.push_back({.first_op = first});
    if (first < 21) plan.segments.push_back({.first_op = 21, .is_dropped = true});
    plan.segments.push_back({.first_op = 22});
    PlannedPolicy policy(std::make_shared<const Plan>(plan));
    expect_equal(gradients(loss, {x}, &policy), plain);
    EXPECT_FALSE(policy.has_diverged());
    EXPECT_EQ(report_.segments + 1, static_cast<int64_t>(plan.segments.size()));
  }
  // A plan of ours has no cut where none can be.
  for (const int stages : {4, 12, 40}) {
    for (const int cut : find_cuts(profile, stages)) {
      EXPECT_FALSE(cut > 0 && (cut - 1) % 7 > 2 && (cut - 1) % 7 < 5) << cut;
    }
  }
}

}  // namespace
}  // namespace fleet::memory
