// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/serialize/archive.h>

#include "tests/train/small_training.h"

namespace fleet::testing {

using torch::optim::OptimizerParamGroup;
using TorchOptim = std::shared_ptr<torch::optim::Optimizer>;
using MakeTorch = std::function<TorchOptim(std::vector<OptimizerParamGroup>)>;

/// A user's own: p -= lr * sign(g). It notes what it saw.
struct SignOptions : torch::optim::OptimizerCloneableOptions<SignOptions> {
  SignOptions(double lr = 0.01) : rate(lr) {}  // NOLINT(google-explicit-constructor)
  double get_lr() const override { return rate; }
  void set_lr(const double lr) override { rate = lr; }
  double rate;
};

class Sign : public torch::optim::Optimizer {
 public:
  explicit Sign(const std::vector<OptimizerParamGroup>& groups, SignOptions options = {})
      : Optimizer(groups, std::make_unique<SignOptions>(options)) {}

  torch::Tensor step(LossClosure closure = nullptr) override {
    EXPECT_EQ(closure, nullptr);
    const torch::NoGradGuard no_grad;
    seen.clear();
    for (auto& group : param_groups()) {
      for (auto& p : group.params()) {
        seen.push_back(p.grad().defined() ? p.grad().clone() : torch::Tensor());
        if (p.grad().defined()) p.sub_(p.grad().sign(), group.options().get_lr());
      }
    }
    ++steps;
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("steps", torch::IValue(steps));
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::IValue value;
    archive.read("steps", value);
    steps = value.toInt();
  }

  int64_t steps = 0;
  std::vector<torch::Tensor> seen;
};

struct Kind {
  std::string name;
  MakeTorch make;
};

inline std::vector<Kind> kinds() {
  namespace to = torch::optim;
  return {
      {"SGD",
       [](const auto& groups) {
         return std::make_shared<to::SGD>(groups, to::SGDOptions(0.05).momentum(0.9));
       }},
      {"RMSprop",
       [](const auto& groups) {
         return std::make_shared<to::RMSprop>(
             groups, to::RMSpropOptions(0.01).momentum(0.5).centered(true).weight_decay(0.01));
       }},
      {"Adagrad",
       [](const auto& groups) {
         return std::make_shared<to::Adagrad>(groups, to::AdagradOptions(0.05).lr_decay(0.1));
       }},
      {"Adam",
       [](const auto& groups) {
         return std::make_shared<to::Adam>(groups, to::AdamOptions(0.01).amsgrad(true).eps(1e-4));
       }},
      {"AdamW",
       [](const auto& groups) {
         return std::make_shared<to::AdamW>(groups, to::AdamWOptions(0.01).eps(1e-4));
       }},
  };
}

inline std::vector<Kind> kinds_and_own() {
  auto all = kinds();
  all.push_back({"Sign", [](const auto& groups) { return std::make_shared<Sign>(groups); }});
  return all;
}

/// A branch that takes part on request.
struct BranchedImpl : torch::nn::Module {
  BranchedImpl() {
    torch::manual_seed(3);
    trunk = register_module("trunk", torch::nn::Linear(6, 3));
    branch = register_module("branch", torch::nn::Linear(6, 3));
  }
  torch::Tensor loss(const Batch& batch, bool with_branch) {
    auto out = trunk(batch.data);
    if (with_branch) out = out + branch(batch.data);
    return torch::nn::functional::cross_entropy(out, batch.target);
  }
  torch::nn::Linear trunk{nullptr}, branch{nullptr};
};
TORCH_MODULE(Branched);

inline bool has_branch(int64_t step) { return step == 1 || step >= 4; }

}  // namespace fleet::testing
