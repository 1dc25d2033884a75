// SPDX-License-Identifier: Apache-2.0
// Models as LibTorch users write them, not one line changed, against plain autograd: bit for bit.

#include "fleet/memory/tape/tape.h"

#include <functional>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/checkpoint.h"
#include "fleet/memory/recompute.h"
#include "fleet/memory/replay/replay_rules.h"
#include "fleet/memory/tape/policies.h"

#include "tests/support/error_of.h"

namespace fleet::memory {
namespace {

using fleet::testing::error_message_of;
using torch::Tensor;
namespace nn = torch::nn;

constexpr double kMiB = 1024.0 * 1024.0;

struct Result {
  std::vector<Tensor> tensors;  // loss, gradients, buffers, the generator's next numbers
  double held = 0;              // MiB between forward and backward
  TapeReport report;
};

MemoryCounter& counter() { return BudgetAllocator::cpu().counter(); }

// Everything that one step of `net` computes.
Result step(nn::Module& net, const std::function<Tensor()>& loss, TapePolicy* policy,
            int forwards = 1) {
  std::vector<Tensor> buffers;
  for (const auto& buffer : net.buffers()) buffers.push_back(buffer.clone());
  for (const auto& parameter : net.parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  torch::manual_seed(4);
  Result result;
  const auto before = counter().live();
  {
    std::vector<Tensor> losses;
    for (int i = 0; i < forwards; ++i) {
      if (policy) {
        TapeScope scope(*policy);
        losses.push_back(loss());
        result.report = scope.tape().report();
      } else {
        losses.push_back(loss());
      }
    }
    result.held = static_cast<double>(counter().live() - before) / kMiB;
    for (const auto& value : losses) {
      value.backward();
      result.tensors.push_back(value.detach());
    }
  }
  for (const auto& parameter : net.parameters()) result.tensors.push_back(parameter.grad().clone());
  const torch::NoGradGuard no_grad;
  const auto now = net.buffers();
  for (size_t i = 0; i < now.size(); ++i) {
    result.tensors.push_back(now[i].clone());
    now[i].copy_(buffers[i]);
  }
  result.tensors.push_back(torch::rand({3}));
  return result;
}

void expect_equal(const Result& ours, const Result& plain) {
  ASSERT_EQ(ours.tensors.size(), plain.tensors.size());
  for (size_t i = 0; i < ours.tensors.size(); ++i) {
    EXPECT_TRUE(ours.tensors[i].equal(plain.tensors[i])) << "tensor " << i;
  }
}

class StockModels : public ::testing::Test {
 protected:
  StockModels() {
    at::set_num_threads(1);
    torch::manual_seed(1);
  }

  // In segments found by the tape, op by op, and twice before the first backward.
  void compare(nn::Module& net, const std::function<Tensor()>& loss, double at_most) {
    const auto plain = step(net, loss, nullptr);
    AutomaticCuts cuts(64 << 10, 1);
    const auto ours = step(net, loss, &cuts);
    expect_equal(ours, plain);
    EXPECT_GT(ours.report.evicted, 0);
    EXPECT_LT(ours.held, at_most * plain.held) << "plain holds " << plain.held << " MiB";
    KeepAll keep;
    expect_equal(step(net, loss, &keep), plain);
    const auto plain_twice = step(net, loss, nullptr, 2);
    expect_equal(step(net, loss, &cuts, 2), plain_twice);
    EXPECT_EQ(Region::alive(), 0);
  }

  BudgetAllocatorScope on_{BudgetAllocator::cpu()};
};

TEST_F(StockModels, TransformerEncoder) {
  const auto layer = nn::TransformerEncoderLayerOptions(64, 4).dim_feedforward(256).dropout(0.1);
  nn::TransformerEncoder net(nn::TransformerEncoderOptions(nn::TransformerEncoderLayer(layer), 4));
  const auto input = torch::randn({32, 8, 64});
  compare(
      *net, [&] { return net->forward(input).square().mean(); }, 0.5);
}

TEST_F(StockModels, Lstm) {
  nn::LSTM net(nn::LSTMOptions(32, 64).num_layers(2).dropout(0.2));
  const auto input = torch::randn({20, 16, 32});
  compare(
      *net,
      [&] {
        auto x = input;
        for (int i = 0; i < 3; ++i) x = std::get<0>(net->forward(x)).narrow(2, 0, 32);
        return x.square().mean();
      },
      0.6);
}

struct ResidualBlockImpl : nn::Module {
  explicit ResidualBlockImpl(int64_t width)
      : first(register_module(
            "first", nn::Conv2d(nn::Conv2dOptions(width, width, 3).padding(1).bias(false)))),
        first_norm(register_module("first_norm", nn::BatchNorm2d(width))),
        second(register_module(
            "second", nn::Conv2d(nn::Conv2dOptions(width, width, 3).padding(1).bias(false)))),
        second_norm(register_module("second_norm", nn::BatchNorm2d(width))) {}

  Tensor forward(const Tensor& x) {
    auto y = first_norm(first(x)).relu_();
    y = second_norm(second(y));
    y += x;
    return y.relu_();
  }

  nn::Conv2d first;
  nn::BatchNorm2d first_norm;
  nn::Conv2d second;
  nn::BatchNorm2d second_norm;
};
TORCH_MODULE(ResidualBlock);

// Ops in place everywhere; statistics and counters of batch norm move once.
TEST_F(StockModels, ResnetWithOpsInPlace) {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), ResidualBlock(8),
                     ResidualBlock(8), nn::MaxPool2d(2), ResidualBlock(8), ResidualBlock(8));
  const auto input = torch::randn({4, 3, 32, 32});
  compare(
      *net, [&] { return net->forward(input).square().mean(); }, 0.6);
}

// Its statistics are written by an op in place, which moves their version. The next call of the
// same layer reads them.
TEST_F(StockModels, InstanceNormWithRunningStatistics) {
  nn::Sequential net;
  const nn::InstanceNorm2d shared(
      nn::InstanceNorm2dOptions(8).affine(true).track_running_stats(true));
  net->push_back(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)));
  for (int i = 0; i < 4; ++i) {
    net->push_back(
        nn::InstanceNorm2d(nn::InstanceNorm2dOptions(8).affine(true).track_running_stats(true)));
    net->push_back(nn::ReLU());
    net->push_back(shared);
    net->push_back(nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1)));
  }
  const auto input = torch::randn({4, 3, 32, 32});
  compare(
      *net, [&] { return net->forward(input).square().mean(); }, 0.75);
}

// Skips that cross many cuts.
TEST_F(StockModels, UNet) {
  std::vector<nn::Sequential> down, up;
  nn::Sequential all;
  const auto block = [&](int64_t in, int64_t out) {
    nn::Sequential layers(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)),
                          nn::BatchNorm2d(out), nn::ReLU(nn::ReLUOptions().inplace(true)),
                          nn::Conv2d(nn::Conv2dOptions(out, out, 3).padding(1)), nn::GELU(),
                          nn::Dropout(0.1));
    for (const auto& layer : *layers) all->push_back(layer);
    return layers;
  };
  for (int64_t i = 0; i < 3; ++i) down.push_back(block(i == 0 ? 3 : 8, 8));
  for (int64_t i = 0; i < 2; ++i) up.push_back(block(16, 8));
  const auto input = torch::randn({2, 3, 32, 32});
  compare(
      *all,
      [&] {
        std::vector<Tensor> skips;
        auto x = input;
        for (size_t i = 0; i < down.size(); ++i) {
          x = down[i]->forward(x);
          if (i + 1 < down.size()) {
            skips.push_back(x);
            x = torch::max_pool2d(x, 2);
          }
        }
        for (auto& layers : up) {
          x = torch::upsample_nearest2d(x, {x.size(2) * 2, x.size(3) * 2});
          x = layers->forward(torch::cat({x, skips.back()}, 1));
          skips.pop_back();
        }
        return x.square().mean();
      },
      0.6);
}

TEST_F(StockModels, AutocastAndEmbeddings) {
  struct Net : nn::Module {
    nn::Embedding words = register_module("words", nn::Embedding(50, 64));
    nn::Linear in = register_module("in", nn::Linear(64, 256));
    nn::Linear out = register_module("out", nn::Linear(256, 64));
    nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({64})));
  } net;
  const auto tokens = torch::randint(50, {16, 32});
  compare(
      net,
      [&] {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
        auto x = net.words(tokens);
        for (int i = 0; i < 6; ++i)
          x = net.norm(x + torch::dropout(net.out(torch::gelu(net.in(x))), 0.1, true));
        auto loss = x.to(torch::kFloat).square().mean();
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
        return loss;
      },
      0.5);
}

TEST_F(StockModels, MasksAreKeptAsBitsWhetherOrNotTheirInputsAreKept) {
  class MasksAsBits final : public TapePolicy {
   public:
    Treatment treatment(int /*segment*/) override { return Treatment::kKeep; }
    bool recomputes_results_of(const OpRecord& op) override {
      return op.traits->name == "aten::dropout";
    }
  };
  // The input of the first dropout is not kept; the second reads what tanh saves, so that its
  // result can be recomputed too.
  nn::Sequential net(nn::Linear(64, 256), nn::Dropout(0.3), nn::Linear(256, 256), nn::Tanh(),
                     nn::Dropout(0.1), nn::Linear(256, 16));
  const auto input = torch::randn({512, 64});
  const auto loss = [&] { return net->forward(input).square().mean(); };
  const auto plain = step(*net, loss, nullptr);
  MasksAsBits policy;
  const auto ours = step(*net, loss, &policy);
  expect_equal(ours, plain);
  constexpr double kOne = 512 * 256 * sizeof(float) / kMiB;
  EXPECT_NEAR(plain.held - ours.held, 2 * kOne * 31 / 32 + kOne, 0.02);
  expect_equal(step(*net, loss, &policy, 2), step(*net, loss, nullptr, 2));
  EXPECT_EQ(Region::alive(), 0);
}

TEST_F(StockModels, RecomputeByHand) {
  nn::Sequential net;
  for (int i = 0; i < 6; ++i) {
    net->push_back(nn::Linear(64, 64));
    net->push_back(nn::BatchNorm1d(64));
    net->push_back(nn::Dropout(0.2));
  }
  const auto input = torch::randn({128, 64});
  const auto mask = torch::rand({128, 64}) > 0.3;  // no gradient
  const auto layers = [&](int first, Tensor x, const Tensor& keep) {
    for (int i = first; i < first + 6; ++i) {
      auto layer = *(net->begin() + i);
      x = torch::relu(layer.forward(x));
    }
    return std::make_pair(x * keep, x.mean());
  };
  const auto loss = [&](int depth) {
    auto x = input;
    auto sum = torch::zeros({});
    for (int part = 0; part < 3; ++part) {
      std::pair<Tensor, Tensor> result;
      const auto run = [&](Tensor y, const Tensor& keep) {
        return layers(6 * part, std::move(y), keep);
      };
      if (depth == 0) result = run(x, mask);
      if (depth == 1) result = recompute(run, x, mask);
      if (depth == 2) {
        result = recompute(
            [&](Tensor y, const Tensor& keep) { return recompute(run, y * 1.0, keep); }, x, mask);
      }
      x = result.first;
      sum = sum + result.second;
    }
    return x.sum() + sum;
  };
  const auto plain = step(
      *net, [&] { return loss(0); }, nullptr);
  const auto once = step(
      *net, [&] { return loss(1); }, nullptr);
  expect_equal(once, plain);
  EXPECT_LT(once.held, 0.3 * plain.held);
  expect_equal(step(
                   *net, [&] { return loss(2); }, nullptr),
               plain);
  EXPECT_EQ(Region::alive(), 0);
}

TEST_F(StockModels, CheckpointsCutWhereTheyAreNamed) {
  nn::Sequential net;
  for (int i = 0; i < 8; ++i) net->push_back(nn::Linear(64, 64));
  const auto input = torch::randn({512, 64});
  const auto loss = [&] {
    auto x = input;
    for (int i = 0; i < 8; ++i) {
      x = checkpoint(torch::gelu((*(net->begin() + i)).forward(x)), format("layer.{}", i));
    }
    return x.square().mean();
  };
  const auto plain = step(*net, loss, nullptr);
  NamedCuts all({"layer.0", "layer.1", "layer.2", "layer.3", "layer.4", "layer.5", "layer.6"});
  const auto each = step(*net, loss, &all);
  expect_equal(each, plain);
  EXPECT_EQ(each.report.segments, 7);
  EXPECT_EQ(all.seen().size(), 8U);
  NamedCuts one({"layer.1"});
  const auto half = step(*net, loss, &one);
  expect_equal(half, plain);
  EXPECT_LT(each.held, half.held);
  EXPECT_LT(half.held, plain.held);
  NamedCuts none({});
  EXPECT_EQ(step(*net, loss, &none).report.evicted, 0);
}

TEST_F(StockModels, OutOfMemoryInAReplayLeaksNothing) {
  nn::Sequential net;
  for (int i = 0; i < 6; ++i) {
    net->push_back(nn::Linear(128, 128));
    net->push_back(nn::GELU());
  }
  const auto input = torch::randn({1024, 128});
  const auto loss = [&] { return net->forward(input).square().mean(); };
  AutomaticCuts cuts(1 << 20, 1);
  const auto good = step(*net, loss, &cuts);
  const auto before = counter().live();
  torch::manual_seed(4);
  {
    Tensor value;
    {
      TapeScope scope(cuts);
      value = loss();
    }
    counter().set_budget(counter().live() + (100 << 10));
    EXPECT_THROW(value.backward({}, /*retain_graph=*/true), c10::OutOfMemoryError);
    counter().set_budget(std::nullopt);
    compat::flush_failed_backward();
    for (const auto& parameter : net->parameters()) parameter.mutable_grad().zero_();
    value.backward();  // the same graph, with more memory
  }
  Result again;
  for (const auto& parameter : net->parameters()) again.tensors.push_back(parameter.grad());
  for (size_t i = 0; i < again.tensors.size(); ++i) {
    EXPECT_TRUE(again.tensors[i].equal(good.tensors[i + 1])) << i;
  }
  EXPECT_EQ(counter().live(), before);
  EXPECT_EQ(Region::alive(), 0);
}

// An op with a course of its own: every second call returns something else.
int g_calls = 0;
Tensor moody(const Tensor& x) {
  return ++g_calls % 2 ? torch::sin(x) : torch::sin(x).narrow(0, 0, 1);
}

TEST_F(StockModels, AnOpWithHiddenStateIsNamed) {
  static const auto library = [] {
    torch::Library tests(torch::Library::FRAGMENT, "fleet_tests", std::nullopt, __FILE__, __LINE__);
    tests.def("moody(Tensor x) -> Tensor", [](const Tensor& x) { return moody(x); });
    return tests;
  }();
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("fleet_tests::moody", "")
                      .typed<Tensor(const Tensor&)>();
  const auto x = torch::randn({64, 64}, torch::requires_grad());
  const auto run = [&] {
    g_calls = 0;
    const auto y = recompute([&](const Tensor& z) { return torch::exp(op.call(z * 2)); }, x);
    y.sum().backward();
  };
  const auto text = error_message_of([&] { run(); });
  EXPECT_NE(text.find("fleet_tests::moody"), std::string::npos) << text;
  EXPECT_NE(text.find("when it was replayed"), std::string::npos) << text;
  EXPECT_NE(text.find("never_replay"), std::string::npos) << text;
  compat::flush_failed_backward();
  never_replay({"fleet_tests::moody"});
  EXPECT_EQ(error_message_of([&] { run(); }), "");
}

TEST_F(StockModels, WhatAutogradRejectsIsRejected) {
  const auto x = torch::randn({64, 64}, torch::requires_grad());
  AutomaticCuts cuts(1, 4);
  Tensor loss;
  {
    TapeScope scope(cuts);
    auto y = torch::exp(x * 2);
    auto z = torch::sigmoid(y);
    y.add_(1);  // exp needs its result
    loss = (z * z).sum() + y.sum();
  }
  const auto text = error_message_of([&] { loss.backward(); });
  EXPECT_NE(text.find("modified by an inplace operation"), std::string::npos) << text;
  EXPECT_NE(text.find("aten::exp"), std::string::npos) << text;
  compat::flush_failed_backward();
}

}  // namespace
}  // namespace fleet::memory
