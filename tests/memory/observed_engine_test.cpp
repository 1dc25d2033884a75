// SPDX-License-Identifier: Apache-2.0
// Fleet's autograd engine beside another one, such as Python's, and nothing of it afterwards.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/torch.h>

#include "fleet/core/torch/graph_leaves.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/recompute.h"
#include "fleet/memory/replay/replay.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"

namespace fleet::memory {
namespace {

using torch::Tensor;

// An engine with hooks of its user's, as Python's has them.
class OtherEngine final : public torch::autograd::Engine {
 public:
  static Engine& get() {
    static auto* const one = new OtherEngine();
    return *one;
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (!has_hooks) return nullptr;
    return std::make_unique<Hooks>();
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    ++backwards;
    return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  static inline bool has_hooks = false;
  static inline int packed = 0, backwards = 0;

 private:
  struct Hooks final : torch::autograd::SavedVariableHooks {
    void call_pack_hook(const Tensor& tensor) override {
      ++packed;
      saved = tensor.detach();
    }
    Tensor call_unpack_hook() override { return saved; }
    Tensor saved;
  };
};

class ObservedEngineTest : public ::testing::Test {
 protected:
  ObservedEngineTest() {
    torch::autograd::set_default_engine_stub(&OtherEngine::get);
    OtherEngine::packed = OtherEngine::backwards = 0;
  }
  ~ObservedEngineTest() override {
    OtherEngine::has_hooks = false;
    torch::autograd::set_default_engine_stub(&torch::autograd::Engine::get_base_engine);
  }
  KeepAll keep_all_;
  Tensor x_ = torch::randn({8, 8}, torch::requires_grad());
};

TEST_F(ObservedEngineTest, AWatchSeesEachBackwardOfItsGraphOnce) {
  std::string seen;
  Tensor loss;
  {
    const compat::BackwardWatch outer([&] { seen += "o"; });
    TapeScope scope(keep_all_);
    const auto y = x_.sin().exp();
    const compat::BackwardWatch inner([&] { seen += "i"; });
    loss = y.tanh().exp().sum();
    scope.tape().end();
  }
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(seen, "oi");
  x_.exp().sum().backward();  // another graph
  EXPECT_EQ(seen, "oi");
  loss.backward();
  EXPECT_EQ(seen, "oioi");
}

TEST_F(ObservedEngineTest, IsTheDefaultOnlyWhileSomebodyObserves) {
  const auto* const before = compat::default_engine();
  {
    TapeScope outer(keep_all_);
    EXPECT_NE(compat::default_engine(), before);
    { TapeScope inner(keep_all_); }
    EXPECT_NE(compat::default_engine(), before);
  }
  EXPECT_EQ(compat::default_engine(), before);
  auto loss = recompute([&] { return x_.sin().exp().sum(); });
  EXPECT_EQ(compat::default_engine(), before);
  loss.backward();  // replays install it again for a while
  EXPECT_EQ(compat::default_engine(), before);
  EXPECT_TRUE(x_.grad().equal(x_.cos() * x_.sin().exp()));
}

TEST_F(ObservedEngineTest, HooksOfTheUserComeFirstAndAreNotRecorded) {
  Tensor loss;
  int64_t saves = 0;
  {
    TapeScope scope(keep_all_);
    const auto y = x_.exp();  // for Fleet
    OtherEngine::has_hooks = true;
    loss = y.sin().sum();  // for the user
    OtherEngine::has_hooks = false;
    saves = scope.tape().report().saves;
  }
  EXPECT_EQ(saves, 1);
  EXPECT_EQ(OtherEngine::packed, 1);
  loss.backward();
  EXPECT_EQ(OtherEngine::backwards, 1);
  EXPECT_TRUE(x_.grad().equal(x_.exp().cos() * x_.exp()));
}

TEST_F(ObservedEngineTest, HooksAroundABackwardDoNotSeeItsReplays) {
  auto loss = recompute([&] { return x_.sin().exp().sum(); });
  const auto before = replay_totals().ops;
  OtherEngine::has_hooks = true;
  loss.backward();
  EXPECT_GT(replay_totals().ops, before);
  EXPECT_EQ(OtherEngine::packed, 0);
}

TEST_F(ObservedEngineTest, ABackwardInsideAForwardIsNotRecorded) {
  TapeScope scope(keep_all_);
  const auto loss = x_.sin().sum();
  const auto one = torch::ones({});  // what backward() would make is an op of the program
  const int ops = scope.tape().next_op();
  loss.backward(one);
  EXPECT_EQ(scope.tape().next_op(), ops);
  EXPECT_TRUE(x_.grad().defined());
}

TEST_F(ObservedEngineTest, TheEndOfABackwardIsToldOnceWhetherItFailsOrNot) {
  std::vector<bool> ends;
  struct Told final : torch::autograd::FunctionPreHook {
    Told(std::vector<bool>& ends, bool fails) : ends(ends), fails(fails) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& gradients) override {
      compat::on_backward_end([this](bool succeeded) { ends.push_back(succeeded); });
      if (fails) throw std::runtime_error("no");
      return gradients;
    }
    std::vector<bool>& ends;
    bool fails;
  };
  for (const bool fails : {false, true}) {
    auto loss = x_.sin().sum();
    loss.grad_fn()->add_pre_hook(std::make_unique<Told>(ends, fails));
    if (fails) {
      EXPECT_THROW(loss.backward(), std::runtime_error);
      compat::flush_failed_backward();
    } else {
      loss.backward();
    }
  }
  EXPECT_EQ(ends, (std::vector<bool>{true, false}));
}

bool g_is_opaque = false;

TEST_F(ObservedEngineTest, OpaqueCodeIsNotRecorded) {
  compat::set_opaque_code([] { return g_is_opaque; });
  TapeScope scope(keep_all_);
  {
    const torch::NoGradGuard no_grad;
    g_is_opaque = true;
    (void)x_.sin();
    EXPECT_EQ(scope.tape().next_op(), 0);
    g_is_opaque = false;
    (void)x_.sin();
    EXPECT_EQ(scope.tape().next_op(), 1);
  }
  compat::set_opaque_code(nullptr);
}

TEST_F(ObservedEngineTest, LeavesAreThoseThatABackwardReaches) {
  const auto w = torch::randn({8}, torch::requires_grad());
  const auto other = torch::randn({8}, torch::requires_grad());
  const auto leaves = compat::leaves_of((x_ * w + x_).sum());
  ASSERT_EQ(leaves.size(), 2u);
  for (const auto& leaf : leaves) EXPECT_TRUE(leaf.is_same(x_) || leaf.is_same(w));
  EXPECT_EQ(compat::leaves_of(w).size(), 1u);
  EXPECT_TRUE(compat::leaves_of(torch::ones({1})).empty());
}

TEST(AllocatorAfterTheLastBudget, IsTheOneBefore) {
  auto& memory = BudgetAllocator::cpu();
  if (memory.is_on() || memory.counter().live_blocks() > 0) GTEST_SKIP() << "somebody counts";
  auto* const before = c10::GetCPUAllocator();
  Tensor outlives;
  {
    const BudgetAllocatorScope counting(memory);
    EXPECT_NE(c10::GetCPUAllocator(), before);
    outlives = torch::ones({100'000});
    EXPECT_TRUE(memory.has_made(outlives.storage().data_ptr()));
  }
  EXPECT_NE(c10::GetCPUAllocator(), before);  // its block may be freed through it
  EXPECT_FALSE(memory.has_made(torch::ones({10}).storage().data_ptr()));
  outlives.reset();
  EXPECT_EQ(c10::GetCPUAllocator(), before);
}

}  // namespace
}  // namespace fleet::memory
