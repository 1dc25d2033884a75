// SPDX-License-Identifier: Apache-2.0
// Programs that write what they compute into a buffer, slice by slice: linear recurrences, caches,
// tables. Equal to plain training within half and a quarter of its activations, whether values are
// evicted on demand or by a plan, and without a copy of the buffer for each slice.

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/replay/constant_input.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tensor_storage.h"

#include "tests/memory/equal_tensors.h"

namespace fleet::memory {
namespace {

using torch::Tensor;
using torch::indexing::Slice;

constexpr int64_t kSamples = 8, kSteps = 24, kWidth = 32, kLayers = 6;

// The buffers themselves: no op that could be replayed made them, so they stay until no replay
// reads them any more.
constexpr int64_t kBuffers = kLayers * kSamples * kSteps * kWidth * int64_t{sizeof(float)};

// One layer of [samples, steps, width] to the same, as people write them.
using Layer = std::function<Tensor(const Tensor& x)>;

// The attention of RWKV: running maximum, numerator and denominator; the output is assigned slice
// by slice.
Tensor weighted_average(const Tensor& x) {
  auto out = torch::zeros_like(x);
  auto numerator = torch::zeros_like(x.select(1, 0)), denominator = numerator.clone();
  auto highest = torch::full_like(numerator, -1e38);
  for (int64_t t = 0; t < x.size(1); ++t) {
    const auto key = x.select(1, t), value = torch::sigmoid(key);
    const auto now = torch::maximum(highest, key);
    const auto before = torch::exp(highest - now), here = torch::exp(key - now);
    numerator = before * numerator + here * value;
    denominator = before * denominator + here;
    out.select(1, t).copy_(numerator / denominator);
    highest = now;
  }
  return torch::sigmoid(x) * out;
}

// Of Griffin: a gate decides how much of the state stays.
Tensor gated_scan(const Tensor& x) {
  auto out = torch::zeros_like(x);
  const auto gates = torch::sigmoid(x);
  auto state = torch::zeros_like(x.select(1, 0));
  for (int64_t t = 0; t < x.size(1); ++t) {
    state = gates.index({Slice(), t}) * state +
            torch::rsub(gates.index({Slice(), t}), 1) * x.index({Slice(), t});
    out.index_put_({Slice(), t}, state);
  }
  return out;
}

// The next slice is computed from the one before, read from the buffer itself.
Tensor reads_what_it_wrote(const Tensor& x) {
  auto out = torch::empty_like(x);
  const auto steps = torch::tanh(x);
  out.select(1, 0).copy_(steps.select(1, 0));
  for (int64_t t = 1; t < x.size(1); ++t) {
    out.select(1, t).copy_(out.select(1, t - 1) + steps.select(1, t));
  }
  return torch::tanh(out);
}

// Keys are appended to a cache, and all of them so far are attended to.
Tensor cache_by_slices(const Tensor& x) {
  auto keys = x.new_zeros(x.sizes());
  std::vector<Tensor> results;
  for (int64_t t = 0; t < x.size(1); ++t) {
    const auto query = x.narrow(1, t, 1);
    keys.narrow(1, t, 1).copy_(torch::tanh(query));
    const auto seen = keys.narrow(1, 0, t + 1).clone();
    results.push_back(torch::softmax(query.matmul(seen.transpose(1, 2)), -1).matmul(seen));
  }
  return torch::cat(results, 1);
}

Tensor cache_by_cat(const Tensor& x) {
  Tensor keys;
  std::vector<Tensor> results;
  for (int64_t t = 0; t < x.size(1); ++t) {
    const auto query = x.narrow(1, t, 1), key = torch::tanh(query);
    keys = t == 0 ? key : torch::cat({keys, key}, 1);
    results.push_back(torch::softmax(query.matmul(keys.transpose(1, 2)), -1).matmul(keys));
  }
  return torch::cat(results, 1);
}

// The buffer is a result that is overwritten, not a factory's.
Tensor overwrites_a_result(const Tensor& x) {
  auto out = x * 2;
  for (int64_t t = 0; t < x.size(1); ++t) {
    out.select(1, t).copy_(torch::sigmoid(torch::tanh(x.select(1, t)) * 3));
  }
  return torch::tanh(out);
}

Tensor by_index(const Tensor& x) {
  auto out = torch::zeros_like(x);
  for (int64_t t = 0; t < x.size(1); t += 4) {
    const auto places = torch::arange(t, t + 4);
    out.index_copy_(1, places, torch::sigmoid(torch::tanh(x.narrow(1, t, 4))));
    out.index_add_(1, places, torch::exp(-x.narrow(1, t, 4).square()));
  }
  return torch::tanh(out);
}

Tensor by_scatter_and_mask(const Tensor& x) {
  const auto order = torch::arange(x.size(2)).flip(0).expand({x.size(0), x.size(2)});
  auto out = torch::zeros_like(x);
  for (int64_t t = 0; t < x.size(1); ++t) {
    const auto value = torch::tanh(torch::sigmoid(x.select(1, t)) * 2);
    out.select(1, t).scatter_(1, order, value);
    out.select(1, t).masked_fill_(order.eq(t), 0.5);
  }
  return torch::tanh(out);
}

// Windows of an image are worked on in place, after a roll.
Tensor rolled_windows(const Tensor& x) {
  auto rolled = torch::roll(torch::tanh(x), 2, 1).clone();
  for (int64_t t = 0; t < x.size(1); t += 4) {
    auto window = rolled.narrow(1, t, 4);
    window.add_(torch::sigmoid(window.flip(1)));
  }
  return torch::tanh(torch::roll(rolled, -2, 1));
}

Tensor stacked(const Tensor& x) {
  std::vector<Tensor> states;
  auto state = torch::zeros_like(x.select(1, 0));
  for (const auto& step : x.unbind(1)) {
    state = torch::tanh(step + torch::where(state > 0, state, state.exp() - 1));
    states.push_back(state);
  }
  return torch::stack(states, 1);
}

// What the branches read beside a value is filled with one number.
Tensor chosen_by_masks(const Tensor& x) {
  const auto y = torch::tanh(x);
  auto z = torch::where(y > 0, y, torch::zeros_like(y));
  z = torch::where(z < 0.5, z, torch::full_like(z, 0.5));
  z = torch::maximum(z, -torch::ones_like(z)) + torch::zeros_like(z);
  return torch::sigmoid(torch::where(torch::isfinite(z), z, torch::zeros_like(z)));
}

// What a custom function saves is saved between two ops.
struct Squash : torch::autograd::Function<Squash> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    const auto a = torch::sigmoid(x), b = torch::tanh(3 * a), c = torch::exp(-b);
    context->save_for_backward({a, b, c});
    return b * c;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto inner = 3 * saved[0] * (1 - saved[0]) * (1 - saved[1].square());
    return {gradients[0] * saved[2] * (1 - saved[1]) * inner};
  }
};
Tensor custom_function(const Tensor& x) { return Squash::apply(2 * Squash::apply(x)); }

struct Program {
  const char* name;
  Layer layer;
};
const std::vector<Program>& programs() {
  static const auto& all = *new std::vector<Program>{{"weighted_average", weighted_average},
                                                     {"gated_scan", gated_scan},
                                                     {"reads_what_it_wrote", reads_what_it_wrote},
                                                     {"cache_by_slices", cache_by_slices},
                                                     {"cache_by_cat", cache_by_cat},
                                                     {"overwrites_a_result", overwrites_a_result},
                                                     {"by_index", by_index},
                                                     {"by_scatter_and_mask", by_scatter_and_mask},
                                                     {"rolled_windows", rolled_windows},
                                                     {"stacked", stacked},
                                                     {"chosen_by_masks", chosen_by_masks},
                                                     {"custom_function", custom_function}};
  return all;
}

// Layers of it between linear layers and norms, with residuals.
struct Net : torch::nn::Module {
  explicit Net(Layer layer) : layer(std::move(layer)) {
    for (int i = 0; i < kLayers; ++i) {
      in.push_back(register_module(format("in{}", i), torch::nn::Linear(kWidth, kWidth)));
      norms.push_back(register_module(format("norm{}", i),
                                      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}))));
    }
    x = torch::randn({kSamples, kSteps, kWidth});
  }
  Tensor loss() {
    auto y = x;
    for (size_t i = 0; i < in.size(); ++i) y = y + layer(in[i](norms[i](y)));
    return y.square().mean();
  }
  Layer layer;
  std::vector<torch::nn::Linear> in;
  std::vector<torch::nn::LayerNorm> norms;
  Tensor x;
};

class WrittenBuffer : public ::testing::TestWithParam<size_t> {
 protected:
  struct Step {
    int64_t peak = 0;  // above what was live before
    int64_t copies = 0;
    std::vector<Tensor> values;
  };

  WrittenBuffer() {
    at::set_num_threads(1);
    torch::manual_seed(1);
    net_ = std::make_unique<Net>(programs()[GetParam()].layer);
    for (const auto& parameter : net_->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    step(nullptr);
  }

  Step step(TapePolicy* policy, std::optional<int64_t> room = std::nullopt,
            const std::shared_ptr<Profiler>& profiler = nullptr) {
    net_->zero_grad(/*set_to_none=*/false);
    Step result;
    const auto live = counter_.live();
    const auto copies = KeptValue::copies();
    counter_.reset_peaks();
    {
      std::optional<BudgetScope> budget;
      if (room) budget.emplace(counter_, live + *room);
      Tensor loss;
      std::optional<TapeScope> scope;
      if (policy) scope.emplace(*policy, profiler);
      loss = net_->loss();
      if (scope) {
        scope->tape().end();
        scope.reset();
      }
      loss.backward();
      result.values.push_back(loss.detach());
    }
    result.peak = counter_.peak() - live;
    result.copies = KeptValue::copies() - copies;
    for (const auto& parameter : net_->parameters()) {
      result.values.push_back(parameter.grad().clone());
    }
    return result;
  }

  BudgetAllocatorScope on_{BudgetAllocator::cpu()};
  MemoryCounter& counter_ = BudgetAllocator::cpu().counter();
  std::unique_ptr<Net> net_;
};

TEST_P(WrittenBuffer, TakesNoMoreThanPlainTrainingWhereMemoryIsAmple) {
  const auto plain = step(nullptr);
  EvictOnDemand policy;
  const auto ours = step(&policy);
  expect_equal(ours.values, plain.values);
  EXPECT_LE(ours.peak, plain.peak * 102 / 100 + kBuffers);
  EXPECT_EQ(ours.copies, 0);
}

TEST_P(WrittenBuffer, IsEvictedOnDemand) {
  const auto plain = step(nullptr);
  for (const int64_t percent : {50, 25}) {
    const auto room = plain.peak * percent / 100 + kBuffers;
    SCOPED_TRACE(format("{} of {} bytes", room, plain.peak));
    EvictOnDemand policy;
    const auto ours = step(&policy, room);
    EXPECT_LE(ours.peak, room);
    expect_equal(ours.values, plain.values);
  }
}

TEST_P(WrittenBuffer, IsPlanned) {
  const auto plain = step(nullptr);
  EvictOnDemand policy;
  const auto live = counter_.live();
  const auto profiler = std::make_shared<Profiler>(counter_);
  step(&policy, plain.peak / 2 + kBuffers, profiler);
  const auto profile = profiler->finish();
  const auto kept = keep_everything(profile).predicted_peak - live;
  EXPECT_GE(kept, plain.peak * 95 / 100);
  EXPECT_LE(kept, plain.peak * 105 / 100 + kBuffers);
  const auto room = plain.peak / 2 + kBuffers;
  const auto plan = make_plan(profile, {.budget = live + room});
  ASSERT_TRUE(plan) << least_memory(profile).predicted_peak - live << " of " << plain.peak;
  PlannedPolicy planned(std::make_shared<const Plan>(*plan));
  const auto ours = step(&planned);
  SCOPED_TRACE(plan->describe());
  EXPECT_FALSE(planned.has_diverged());
  EXPECT_LE(static_cast<double>(ours.peak), 1.02 * static_cast<double>(room));
  expect_equal(ours.values, plain.values);
}

INSTANTIATE_TEST_SUITE_P(Programs, WrittenBuffer, ::testing::Range<size_t>(0, programs().size()),
                         [](const auto& info) { return programs()[info.param].name; });

// ---- inputs of replays that are filled with one number

TEST(ConstantInput, IsFilledFromOneElement) {
  const auto transposed = torch::full({64, 32}, -0.0).t();
  const auto constant = ConstantInput::of(transposed);
  ASSERT_TRUE(constant);
  const auto again = constant->tensor();
  EXPECT_EQ(again.strides(), transposed.strides());
  EXPECT_TRUE(again.equal(transposed));
  EXPECT_TRUE(torch::signbit(again).all().item<bool>());
  const auto whole = torch::full({2000}, 1234567890123456, torch::kLong);
  ASSERT_TRUE(ConstantInput::of(whole));
  EXPECT_TRUE(ConstantInput::of(whole)->tensor().equal(whole));
}

TEST(ConstantInput, IsKnownByItsBytes) {
  const auto filled = torch::zeros({64, 64});
  filled.mutable_data_ptr<float>()[64 * 64 - 1] = 1;  // past the dispatcher
  EXPECT_FALSE(ConstantInput::of(filled));
  EXPECT_FALSE(ConstantInput::of(torch::zeros({1, 1024}).expand({64, 1024})));
  EXPECT_FALSE(ConstantInput::of(torch::zeros({64, 64}).select(1, 0)));
  EXPECT_FALSE(ConstantInput::of(torch::zeros({16})));
}

// ---- which slices overlap

TEST(MayOverlap, AgreesWithTheElements) {
  std::mt19937 random(3);
  const auto below = [&](int n) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(n));
  };
  const auto buffer = torch::zeros({3, 4, 5, 2});
  int disjoint = 0, apart = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto view = [&] {
      auto result = buffer;
      for (int k = 0; k < 3; ++k) {
        const auto d = below(static_cast<int>(result.dim()));
        const auto from = below(static_cast<int>(result.size(d)));
        const auto kind = below(4);
        if (kind == 0 && result.dim() > 1) result = result.select(d, from);
        if (kind == 1)
          result = result.narrow(d, from, 1 + below(static_cast<int>(result.size(d) - from)));
        if (kind == 2) result = result.slice(d, from, result.size(d), 1 + below(3));
        if (kind == 3 && result.dim() > 1) result = result.transpose(0, d);
      }
      return result;
    };
    const auto a = view(), b = view();
    buffer.zero_();
    a.fill_(1);
    const bool meet = b.sum().item<float>() > 0;
    if (meet) {
      EXPECT_TRUE(may_overlap(a, b)) << a.sizes() << a.strides() << b.sizes() << b.strides();
    } else {
      ++disjoint;
      apart += may_overlap(a, b) ? 0 : 1;
    }
  }
  // Only where one runs over the end of the other's rows is it not known.
  EXPECT_GT(disjoint, 500);
  EXPECT_GT(apart, disjoint * 9 / 10);
}

}  // namespace
}  // namespace fleet::memory
