// SPDX-License-Identifier: Apache-2.0
// A memory budget around a loop of the user's own.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/profile/step_profile.h"
#include "fleet/train/memory_budget.h"

#include "tests/support/error_of.h"

namespace fleet {
namespace {

using fleet::testing::error_message_of;
using torch::Tensor;
namespace nn = torch::nn;

struct Net : nn::Module {
  explicit Net(int blocks = 6) {
    for (int i = 0; i < blocks; ++i) {
      layers->push_back(nn::Linear(64, 64));
      layers->push_back(nn::BatchNorm1d(64));
      layers->push_back(nn::GELU());
      layers->push_back(nn::Dropout(0.1));
    }
    register_module("layers", layers);
  }
  Tensor loss() { return layers->forward(x).square().mean(); }

  nn::Sequential layers;
  Tensor x = torch::randn({512, 64});
};

// What the steps leave: losses, parameters, buffers, and the generator's next numbers.
std::vector<Tensor> train(const std::function<Tensor(Net&)>& step, int steps = 4, int blocks = 6) {
  torch::manual_seed(1);
  Net net(blocks);
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  std::vector<Tensor> result;
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    result.push_back(step(net));
    optimizer.step();
  }
  for (const auto& parameter : net.parameters()) result.push_back(parameter.detach());
  for (const auto& buffer : net.buffers()) result.push_back(buffer);
  result.push_back(torch::rand({3}));
  return result;
}

void expect_equal(const std::vector<Tensor>& ours, const std::vector<Tensor>& plain) {
  ASSERT_EQ(ours.size(), plain.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(plain[i])) << i;
}

Tensor plain_step(Net& net) {
  auto loss = net.loss();
  loss.backward();
  return loss.detach();
}

TEST(StepBudgetTest, IsPlainTraining) {
  MemoryBudget budget({.budget = "50% of plain"});
  expect_equal(train([&](Net& net) { return budget.step([&] { return net.loss(); }); }),
               train(plain_step));
  EXPECT_TRUE(budget.plan());
  EXPECT_LE(budget.report().measured_peak, budget.report().budget);
}

TEST(StepBudgetTest, AForwardScopeEndsWithItsBackward) {
  MemoryBudget budget({.budget = "50% of plain"});
  const auto& counter = memory::BudgetAllocator::cpu().counter();
  expect_equal(train([&](Net& net) {
                 Tensor loss;
                 {
                   const auto forward = budget.forward();
                   loss = net.loss();
                   forward->finish();
                 }
                 EXPECT_FALSE(counter.budget().has_value());  // what lies between is no part of it
                 bool is_in_force = false;
                 net.layers[0]->parameters()[0].register_hook([&](const Tensor& gradient) {
                   is_in_force = counter.budget().has_value();
                   return gradient;
                 });
                 loss.backward();
                 EXPECT_TRUE(is_in_force);
                 EXPECT_FALSE(counter.budget().has_value());
                 return loss.detach();
               }),
               train(plain_step));
  EXPECT_TRUE(budget.plan());
}

TEST(StepBudgetTest, ABackwardOfAnotherGraphDoesNotEndAForward) {
  MemoryBudget first({.budget = "1GiB"}), second({.budget = "1GiB"});
  Net a, b;
  const auto forward_of = [](MemoryBudget& budget, Net& net) {
    const auto forward = budget.forward();
    auto loss = net.loss();
    forward->finish();
    return loss;
  };
  auto loss_a = forward_of(first, a);
  auto loss_b = forward_of(second, b);
  loss_b.backward();
  EXPECT_GT(second.report().measured_peak, 0);
  EXPECT_EQ(first.report().measured_peak, 0);
  loss_a.backward();
  EXPECT_GT(first.report().measured_peak, 0);
}

// ---- graphs that are kept for several backwards

enum class Keeps { kTwice, kForHeads, kForNothing };

// A loss twice, the losses of two heads, or one whose graph is kept though nothing follows.
std::pair<Tensor, Tensor> two_losses(Net& net, Keeps keeps) {
  const auto y = net.layers->forward(net.x);
  if (keeps == Keeps::kForHeads) return {(y.sigmoid() * y).tanh().mean(), y.tanh().square().mean()};
  const auto loss = y.square().mean();
  return {loss, loss};
}

void run_backwards(const std::pair<Tensor, Tensor>& losses, Keeps keeps) {
  losses.first.backward({}, /*retain_graph=*/true);
  if (keeps != Keeps::kForNothing) losses.second.backward();
}

TEST(StepBudgetTest, AGraphIsKeptForAsManyBackwardsAsTheProgramRuns) {
  const auto& counter = memory::BudgetAllocator::cpu().counter();
  constexpr int kSteps = 4, kBlocks = 20;
  for (const auto keeps : {Keeps::kTwice, Keeps::kForHeads, Keeps::kForNothing}) {
    const auto plain = train(
        [&](Net& net) {
          const auto losses = two_losses(net, keeps);
          run_backwards(losses, keeps);
          return losses.first.detach();
        },
        kSteps, kBlocks);
    for (const int percent : {70, 50, 33}) {
      // What only one head reads stays to the end of its backward, which no plan knows.
      if (percent < 50 && keeps == Keeps::kForHeads) continue;
      SCOPED_TRACE(::testing::Message() << static_cast<int>(keeps) << ", " << percent << " %");
      MemoryBudget budget({.budget = format("{}% of plain", percent)});
      int step = 0, limited = 0;
      const auto ours = train(
          [&](Net& net) {
            std::pair<Tensor, Tensor> losses;
            {
              const auto forward = budget.forward();
              losses = two_losses(net, keeps);
              forward->finish();
            }
            // The report is of the step before until its first backward has run.
            if (step > 2) {
              EXPECT_LE(budget.report().measured_peak, budget.report().budget);
            }
            if (step == 0) {
              net.layers[0]->parameters()[0].register_hook([&](const Tensor& gradient) {
                limited += counter.budget().has_value();
                return gradient;
              });
            }
            run_backwards(losses, keeps);
            EXPECT_FALSE(counter.budget().has_value());
            EXPECT_GT(budget.report().measured_peak, 0);
            if (++step > 3) {
              EXPECT_GT(budget.report().evicted, 0);
            }
            return losses.first.detach();
          },
          kSteps, kBlocks);
      expect_equal(ours, plain);
      EXPECT_EQ(limited, keeps == Keeps::kForNothing ? 4 : 8);
      ASSERT_TRUE(budget.plan());
      EXPECT_LE(budget.report().measured_peak, budget.report().budget);
      EXPECT_TRUE(budget.profile()->graph.is_kept);
      EXPECT_EQ(budget.profile()->graph.backwards, keeps == Keeps::kForNothing ? 1 : 2);
    }
  }
}

// The same inside `step`.
TEST(StepBudgetTest, BackwardsOfAStepMayKeepTheGraph) {
  const auto plain = train([](Net& net) {
    const auto loss = net.loss();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return loss.detach();
  });
  MemoryBudget budget({.budget = "50% of plain"});
  int step = 0;
  expect_equal(train([&](Net& net) {
                 const auto loss =
                     budget.step([&] { return net.loss(); }, {.backward = [](const Tensor& value) {
                                   value.backward({}, /*retain_graph=*/true);
                                   value.backward();
                                 }});
                 if (++step > 2) {
                   EXPECT_LE(budget.report().measured_peak, budget.report().budget);
                 }
                 return loss;
               }),
               plain);
  EXPECT_EQ(budget.profile()->graph.backwards, 2);
}

// A penalty on gradients has a graph of its own, which is not recorded.
TEST(StepBudgetTest, ABackwardThatMakesAGraphEndsTheStep) {
  const auto run_backward = [](const Tensor& loss, Net& net) {
    const auto gradients = torch::autograd::grad({loss}, {net.layers[0]->parameters()[0]}, {},
                                                 /*retain_graph=*/true, /*create_graph=*/true);
    (loss + gradients[0].square().mean()).backward();
    return loss.detach();
  };
  const auto& counter = memory::BudgetAllocator::cpu().counter();
  MemoryBudget budget({.budget = "1GiB"});
  int limited = 0, backwards = 0;
  const auto ours = train([&](Net& net) {
    Tensor loss;
    {
      const auto forward = budget.forward();
      loss = net.loss();
      forward->finish();
    }
    loss.register_hook([&](const Tensor& gradient) {
      ++backwards;
      return gradient;
    });
    if (backwards == 0) {
      net.layers[0]->parameters()[0].register_hook([&](const Tensor& gradient) {
        limited += counter.budget().has_value();
        return gradient;
      });
    }
    return run_backward(loss, net);
  });
  expect_equal(ours, train([&](Net& net) { return run_backward(net.loss(), net); }));
  EXPECT_EQ(backwards, 8);
  EXPECT_EQ(limited, 4);
  EXPECT_TRUE(budget.plan());
}

// The first step whose graph is kept may be short of memory by a plan that was made for one
// backward; then, or after it, the plan is replaced.
TEST(StepBudgetTest, AProgramThatBeginsToKeepTheGraphIsPlannedAnew) {
  constexpr int kSingle = 3, kSteps = 6;
  MemoryBudget budget({.budget = "50% of plain"});
  std::shared_ptr<const memory::Plan> before;
  int step = 0, short_of_memory = 0;
  train(
      [&](Net& net) {
        if (step == kSingle) before = budget.plan();
        for (;;) {
          try {
            Tensor loss;
            {
              const auto forward = budget.forward();
              loss = net.loss();
              forward->finish();
            }
            if (step >= kSingle) loss.backward({}, /*retain_graph=*/true);
            loss.backward();
            ++step;
            return loss.detach();
          } catch (const c10::OutOfMemoryError&) {
            EXPECT_EQ(step, kSingle);
            if (++short_of_memory > 1) throw;
          }
        }
      },
      kSteps);
  ASSERT_TRUE(before);
  EXPECT_NE(budget.plan(), before);
  EXPECT_TRUE(budget.profile()->graph.is_kept);
  EXPECT_LE(budget.report().measured_peak, budget.report().budget);
}

TEST(StepBudgetTest, ASecondTryStartsFromTheStateBeforeTheFirst) {
  MemoryBudget budget({.budget = "1GiB"});
  int calls = 0;
  expect_equal(train([&](Net& net) {
                 return budget.step([&] {
                   auto loss = net.loss();
                   if (calls++ % 2 == 0) torch::empty({int64_t{1} << 40});
                   return loss;
                 });
               }),
               train(plain_step));
  EXPECT_EQ(calls, 8);
  EXPECT_EQ(budget.attempts(), 2);
}

TEST(StepBudgetTest, ABackwardThatFailsHalfWayAddsItsGradientsOnce) {
  struct Fails : torch::autograd::Function<Fails> {
    static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list gradients) {
      if (left() > 0) {
        --left();
        torch::empty({int64_t{1} << 40});
      }
      return gradients;
    }
    static int& left() {
      static int count = 0;
      return count;
    }
  };
  nn::Linear first(8, 8), last(8, 8);
  const auto x = torch::randn({4, 8});
  const auto loss = [&] { return last(Fails::apply(first(x))).square().mean(); };
  loss().backward();
  std::vector<Tensor> expected;
  for (const auto& p : {first->weight, first->bias, last->weight, last->bias}) {
    expected.push_back(2 * p.grad());
  }
  Fails::left() = 1;
  MemoryBudget budget({.budget = "1GiB"});
  budget.step(loss);
  EXPECT_EQ(budget.attempts(), 2);
  size_t i = 0;
  for (const auto& p : {first->weight, first->bias, last->weight, last->bias}) {
    EXPECT_TRUE(p.grad().equal(expected[i++])) << i;
  }
}

// Gradients and buffers after a step on each of these numbers of rows; not as tensors, which a
// budget would count.
std::vector<float> train_rows(const std::vector<int64_t>& rows,
                              const std::function<void(Net&, int64_t)>& step) {
  torch::manual_seed(1);
  Net net;
  const auto x = net.x;
  std::vector<float> result;
  const auto add = [&](const Tensor& tensor) {
    if (!tensor.is_floating_point()) return;
    result.insert(result.end(), tensor.data_ptr<float>(),
                  tensor.data_ptr<float>() + tensor.numel());
  };
  for (const auto count : rows) {
    net.x = x.narrow(0, 0, count);
    net.zero_grad();
    step(net, count);
    for (const auto& parameter : net.parameters()) add(parameter.grad());
    for (const auto& buffer : net.buffers()) add(buffer);
  }
  return result;
}

void plain_rows(Net& net, int64_t /*count*/) { plain_step(net); }

TEST(StepBudgetTest, AFurtherSizeIsPlannedFromItsFirstStepOn) {
  const std::vector<int64_t> rows{256, 256, 256, 200, 200, 200, 288, 256};
  MemoryBudget budget({.budget = "60% of plain"});
  std::vector<int64_t> planned;
  const auto ours = train_rows(rows, [&](Net& net, int64_t count) {
    const bool is_budget_known = budget.plan(256) != nullptr;
    budget.step([&] { return net.loss(); }, {.samples = count});
    EXPECT_EQ(budget.attempts(), 1);
    if (budget.plan(count)) planned.push_back(count);
    if (is_budget_known) {
      EXPECT_LE(budget.report().measured_peak, budget.report().budget);
    }
  });
  // All but the first step, which nothing is known of.
  EXPECT_EQ(planned, std::vector<int64_t>(rows.begin() + 1, rows.end()));
  EXPECT_EQ(ours, train_rows(rows, plain_rows));
}

// As with sequences of all lengths.
TEST(StepBudgetTest, AProgramOfTheSameOpsOnMoreAndMoreDataKeepsAPlan) {
  const std::vector<int64_t> rows{128, 128, 160, 192, 150, 224, 256, 140, 288, 320, 352, 384, 200};
  MemoryBudget budget({.budget = "1600KiB"});
  const auto ours = train_rows(rows, [&](Net& net, int64_t) {
    budget.step([&] { return net.loss(); });
    EXPECT_LE(budget.report().measured_peak, budget.report().budget);
  });
  ASSERT_TRUE(budget.plan());
  EXPECT_LT(budget.plan()->predicted_peak, budget.report().plain_peak);
  EXPECT_EQ(ours, train_rows(rows, plain_rows));
}

TEST(StepBudgetTest, WhatWasThereBeforeIsCounted) {
  nn::Linear linear(512, 512);
  MemoryBudget budget({.budget = "1GiB"});
  budget.step([&] { return linear(torch::ones({1, 512})).sum(); });
  EXPECT_GE(budget.report().now, 2 * 4 * 512 * 512);
}

TEST(StepBudgetTest, RefusesWhatIsNoAmount) {
  const auto text = error_message_of([] { MemoryBudget({.budget = "much"}); });
  EXPECT_NE(text.find("'much' is no amount of memory"), std::string::npos) << text;
  EXPECT_NE(text.find("fix: write a size like 8GiB"), std::string::npos) << text;
}

TEST(StepBudgetTest, ABudgetThatIsTooSmallIsAnErrorWithAFix) {
  Net net;
  MemoryBudget budget({.budget = "256KiB"});
  const auto text = error_message_of([&] { budget.step([&] { return net.loss(); }); });
  EXPECT_NE(text.find("fix: "), std::string::npos) << text;
}

}  // namespace
}  // namespace fleet
