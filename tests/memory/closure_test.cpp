// SPDX-License-Identifier: Apache-2.0
// What a closure may do beside calling layers, under every policy, against plain autograd: bit
// for bit.

#include <functional>
#include <map>
#include <optional>
#include <thread>

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/checkpoint.h"
#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/recompute.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"
#include "fleet/precision/autocast.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::memory {
namespace {

using fleet::testing::error_message_of;
using torch::Tensor;
using Treatment = TapePolicy::Treatment;

// Cuts at every `fleet::checkpoint`.
class AtMarks : public TapePolicy {
 public:
  explicit AtMarks(Treatment treatment, bool alone = false)
      : treatment_(treatment), alone_(alone) {}
  bool cut_at(std::string_view /*name*/) override { return true; }
  Treatment treatment(int /*segment*/) override { return treatment_; }
  bool recomputes_results_of(const OpRecord& /*op*/) override { return alone_; }

 private:
  Treatment treatment_;
  bool alone_;
};

// Counts the calls of each op on this thread while it lives.
class OpCounts {
 public:
  OpCounts()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&OpCounts::count).scopes({at::RecordScope::FUNCTION}))) {
    counts().clear();
  }
  ~OpCounts() { at::removeCallback(handle_); }
  OpCounts(const OpCounts&) = delete;
  OpCounts& operator=(const OpCounts&) = delete;

  int of(const std::string& name) const { return counts()[name]; }

 private:
  static std::map<std::string, int>& counts() {
    thread_local std::map<std::string, int> map;
    return map;
  }
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    ++counts()[function.name()];
    return nullptr;
  }

  at::CallbackHandle handle_;
};

class Closures : public ::testing::Test {
 protected:
  Closures() {
    at::set_num_threads(1);
    torch::manual_seed(1);
    offload_.min_bytes = 1;
    offload_.is_synchronous = true;
  }

  // Gradients of `leaves`, and the generator's next numbers.
  std::vector<Tensor> gradients(const std::function<Tensor()>& loss,
                                const std::vector<Tensor>& leaves, TapePolicy* policy,
                                const Offload* offload = nullptr) {
    torch::manual_seed(7);
    for (const auto& leaf : leaves) leaf.mutable_grad() = Tensor();
    Tensor value;
    if (policy) {
      TapeScope scope(*policy, offload);
      value = loss();
      report_ = scope.tape().report();
    } else {
      value = loss();
    }
    if (between_) between_();
    value.backward();
    std::vector<Tensor> result{value.detach().clone()};
    for (const auto& leaf : leaves) result.push_back(leaf.grad().clone());
    result.push_back(torch::rand({4}));
    return result;
  }

  static void expect_equal(const std::vector<Tensor>& ours, const std::vector<Tensor>& plain) {
    ASSERT_EQ(ours.size(), plain.size());
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(plain[i])) << i;
  }

  // The loss under every treatment; with `by_hand`, all of it inside `fleet::recompute` too.
  void compare(const std::function<Tensor()>& loss, const std::vector<Tensor>& leaves) {
    const auto plain = gradients(loss, leaves, nullptr);
    for (const auto treatment : {Treatment::kKeep, Treatment::kDrop, Treatment::kEvictEagerly}) {
      for (const bool alone : {false, true}) {
        for (const bool offloaded : {false, true}) {
          SCOPED_TRACE(format("treatment {}, selective {}, offload {}", static_cast<int>(treatment),
                              alone, offloaded));
          AtMarks policy(treatment, alone);
          expect_equal(gradients(loss, leaves, &policy, offloaded ? &offload_ : nullptr), plain);
        }
      }
    }
    AutomaticCuts cuts(256, 2);
    expect_equal(gradients(loss, leaves, &cuts), plain);
    const auto by_hand = [&] { return recompute(loss); };
    expect_equal(gradients(by_hand, leaves, nullptr), plain);
    AtMarks eager(Treatment::kEvictEagerly);
    expect_equal(gradients(by_hand, leaves, &eager), plain);
    compare_planned(loss, leaves, plain);
    compare_planned(by_hand, leaves, plain);
    EXPECT_EQ(Region::alive(), 0);
  }

  // By plans: what the planner finds, and one that recomputes as much as it can.
  void compare_planned(const std::function<Tensor()>& loss, const std::vector<Tensor>& leaves,
                       const std::vector<Tensor>& plain) {
    const BudgetAllocatorScope counting(BudgetAllocator::cpu());
    AutomaticCuts minimal_memory(256, 2);
    const auto profiler = std::make_shared<Profiler>(BudgetAllocator::cpu().counter());
    {
      torch::manual_seed(7);
      for (const auto& leaf : leaves) leaf.mutable_grad() = Tensor();
      Tensor value;
      {
        TapeScope scope(minimal_memory, profiler);
        value = loss();
      }
      value.backward();
    }
    const auto profile = profiler->finish();
    EXPECT_LT(profile.plain_seconds(), 60);
    auto all = keep_everything(profile);
    all.segments.clear();
    const auto ops = static_cast<int>(profile.ops.size());
    for (int op = 0; op < ops; op += 3)
      all.segments.push_back({.first_op = op, .is_dropped = true});
    for (const auto& plan : {least_memory(profile), all}) {
      SCOPED_TRACE(plan.describe());
      PlannedPolicy policy(std::make_shared<const Plan>(plan));
      expect_equal(gradients(loss, leaves, &policy), plain);
      EXPECT_FALSE(policy.has_diverged());
    }
  }

  Offload offload_{std::make_shared<OffloadFile>(OffloadOptions{.page_cache = true})};
  std::function<void()> between_;  // forward and backward
  TapeReport report_;
};

Tensor leaf(at::IntArrayRef sizes, torch::ScalarType dtype = torch::kFloat) {
  return torch::randn(sizes, dtype).requires_grad_();
}

TEST_F(Closures, SparseTensorsStayAsTheyAre) {
  const auto x = leaf({6, 4});
  const auto dense = torch::randn({5, 6}) * (torch::rand({5, 6}) > 0.5);
  const auto sparse = dense.to_sparse();
  const auto compressed = dense.to_sparse_csr();
  compare(
      [&] {
        auto y = checkpoint(torch::mm(sparse, x).tanh(), "first");
        y = y * torch::mm(sparse, x * 2).sigmoid();
        y = checkpoint(y, "second") + torch::mm(compressed, x).tanh();
        // Made inside, and with a gradient of its own.
        const auto inner = torch::where(y > 0, y, 0).to_sparse();
        return torch::mm(inner, y.t().tanh()).square().sum();
      },
      {x});
}

// A replay starts from the values that it had, and does not write to them once more.
TEST_F(Closures, SparseTensorsMayBeWrittenToAfterTheyWereRead) {
  const auto x = leaf({6, 4});
  const auto dense = torch::randn({5, 6}) * (torch::rand({5, 6}) > 0.5);
  Tensor sparse;
  const auto loss = [&] {
    auto y = checkpoint(torch::mm(sparse, x.detach()) * torch::mm(dense, x).tanh(), "first");
    {
      const torch::NoGradGuard no_grad;
      sparse.mul_(0.5);
      sparse._values().add_(1);
    }
    return (torch::mm(sparse, y.t().mm(y).narrow(0, 0, 4).repeat({2, 1}).narrow(0, 0, 6)) + y.sum())
        .tanh()
        .sum();
  };
  compare(
      [&] {
        sparse = dense.to_sparse();
        return loss();
      },
      {x});
}

TEST_F(Closures, OpaqueNestedAndQuantizedTensorsStayAsTheyAre) {
  const auto x = leaf({6, 4});
  compare(
      [&] {
        auto y = checkpoint(torch::relu((x * 2).to_mkldnn()).to_dense().tanh(), "mkldnn");
        y = y * y.sigmoid();
        const auto pieces = torch::_nested_tensor_from_tensor_list({y, y.narrow(0, 0, 3).tanh()});
        checkpoint(y, "nested");
        y = y + torch::nested_to_padded_tensor(pieces, 0.0).sum(0);
        const auto rough = torch::quantize_per_tensor(y.detach(), 0.1, 2, torch::kQInt8);
        checkpoint(y, "quantized");
        return (y * torch::dequantize(rough).tanh()).square().sum();
      },
      {x});
}

// The usual way to pass own numbers to a forward.
TEST_F(Closures, MemoryThatNoTensorOwnsIsNotReadByReplays) {
  const auto x = leaf({6, 4});
  std::vector<float> numbers(24);
  between_ = [&] { std::ranges::fill(numbers, 1e9F); };  // as good as gone
  compare(
      [&] {
        for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i) * 0.1F;
        const auto mine = torch::from_blob(numbers.data(), {6, 4});
        auto y = checkpoint((x * mine.clone()).tanh(), "first");
        y = y * (mine.view({4, 6}).t() + y).sigmoid();
        checkpoint(y, "second");
        return torch::matmul(y, torch::matmul(mine.t(), y).tanh()).square().sum();
      },
      {x});
}

TEST_F(Closures, MemoryThatItsTensorOwnsIsReadByReplays) {
  const auto x = leaf({6, 4});
  int freed = 0;
  const auto loss = [&] {
    auto* const numbers = new std::vector<float>(24, 0.5F);
    const auto mine = torch::from_blob(numbers->data(), {6, 4}, [&freed, numbers](void*) {
      ++freed;
      delete numbers;
    });
    const auto y = checkpoint((x * mine.clone()).tanh(), "first");
    return checkpoint((y * mine).exp() * y.tanh(), "second").square().sum();
  };
  compare(loss, {x});
  AtMarks policy(Treatment::kDrop);
  gradients(loss, {x}, &policy);
  EXPECT_EQ(report_.not_recomputable, 0);
  EXPECT_GT(report_.evicted, 0);
  const int before = freed;
  loss();
  EXPECT_EQ(freed, before + 1);
}

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

TEST_F(Closures, ComplexValuesCrossCutsConjugatedAndNegated) {
  const auto z = leaf({4, 6}, torch::kComplexFloat);
  const auto w = leaf({6, 6}, torch::kComplexFloat);
  compare(
      [&] {
        auto y = checkpoint(torch::conj(z * 2), "conjugated");
        y = y * torch::conj(y).tanh();
        y = torch::linear(y.view({2, 2, 6}), w.conj()).view({4, 6});
        const auto parts = checkpoint(torch::view_as_real(torch::conj_physical(y)), "parts");
        const auto minus = checkpoint(torch::imag(torch::conj(y)), "negated");  // with a neg bit
        auto loss = (minus * minus.exp()).sum() + parts.square().sum();
        checkpoint(minus, "end");
        loss = loss + torch::real(torch::matmul(y, torch::conj(y.t()))).tanh().sum();
        return loss + torch::matmul(minus, minus.t()).sin().sum();
      },
      {z, w});
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
