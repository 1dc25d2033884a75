// SPDX-License-Identifier: Apache-2.0
// Fleet's optimizers against numbers that PyTorch, Paddle, timm and torch_optimizer produced
// (golden/generate.py), and for variants that run on no CPU, against their formulas.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include "fleet/optim/adam.h"
#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"
#include "fleet/optim/momentum.h"
#include "fleet/optim/sgd.h"

namespace fleet::optim {
namespace {

using nlohmann::json;

torch::Tensor tensor_of(const json& values, const std::vector<int64_t>& shape) {
  return torch::tensor(values.get<std::vector<float>>()).view(shape);
}

class Net : public torch::nn::Module {
 public:
  explicit Net(const json& tensors) {
    for (const auto& item : tensors) {
      auto name = item["name"].get<std::string>();
      std::replace(name.begin(), name.end(), '.', '_');
      ordered.push_back(register_parameter(
          name, tensor_of(item["initial"], item["shape"].get<std::vector<int64_t>>())));
      if (!item["decay"].get<bool>()) excluded.push_back(name);
    }
  }
  std::vector<torch::Tensor> ordered;
  std::vector<std::string> excluded;
};

std::unique_ptr<Optimizer> make(const json& test, Net& net) {
  const auto& o = test["options"];
  const auto optimizer = test["optimizer"].get<std::string>();
  const double clip = o.value("max_grad_norm", 0.0);
  std::vector<ParameterGroup> bare;
  if (!net.excluded.empty()) bare.push_back({.names = net.excluded, .weight_decay = 0.0});
  if (optimizer == "sgd") {
    return std::make_unique<SGD>(
        net, SgdOptions{.weight_decay = o["weight_decay"], .max_grad_norm = clip, .groups = bare});
  }
  if (optimizer == "momentum") {
    return std::make_unique<Momentum>(net, MomentumOptions{.momentum = o["momentum"],
                                                           .weight_decay = o["weight_decay"],
                                                           .use_nesterov = o["use_nesterov"],
                                                           .max_grad_norm = clip,
                                                           .groups = bare});
  }
  if (optimizer == "adam") {
    return std::make_unique<Adam>(net, AdamOptions{.beta1 = o["beta1"],
                                                   .beta2 = o["beta2"],
                                                   .epsilon = o["epsilon"],
                                                   .weight_decay = o["weight_decay"],
                                                   .max_grad_norm = clip,
                                                   .groups = bare});
  }
  if (optimizer == "adamw") {
    return std::make_unique<AdamW>(net, AdamWOptions{.beta1 = o["beta1"],
                                                     .beta2 = o["beta2"],
                                                     .epsilon = o["epsilon"],
                                                     .weight_decay = o["weight_decay"],
                                                     .max_grad_norm = clip,
                                                     .groups = bare});
  }
  if (optimizer == "lars") {
    return std::make_unique<Lars>(
        net, LarsOptions{.momentum = o["momentum"],
                         .lars_coeff = o["lars_coeff"],
                         .lars_weight_decay = o["weight_decay"],
                         .epsilon = o["epsilon"],
                         .use_nesterov = o["use_nesterov"],
                         .exclude_from_weight_decay = net.excluded,
                         .max_grad_norm = clip,
                         .rule = {.lr_in_velocity = o["lr_in_velocity"],
                                  .adapt_without_decay = o["adapt_without_decay"],
                                  .decay_at_zero_norm = o["decay_at_zero_norm"],
                                  .trust_clip = o["trust_clip"],
                                  .exclude_bias_and_norm = false}});
  }
  const auto correction = o["bias_correction"].get<std::string>();
  return std::make_unique<Lamb>(
      net,
      LambOptions{.beta1 = o["beta1"],
                  .beta2 = o["beta2"],
                  .epsilon = o["epsilon"],
                  .lamb_weight_decay = o["weight_decay"],
                  .exclude_from_weight_decay = net.excluded,
                  .max_grad_norm = clip,
                  .rule = {.bias_correction = correction == "moments" ? BiasCorrection::kMoments
                                              : correction == "step"  ? BiasCorrection::kStep
                                                                      : BiasCorrection::kNone,
                           .adapt_without_decay = o["adapt_without_decay"],
                           .min_ratio = o["min_ratio"],
                           .max_ratio = o.value("max_ratio", 0.0),
                           .exclude_bias_and_norm = false}});
}

TEST(GoldenTest, StepsLikeOtherLibraries) {
  std::ifstream file(FLEET_GOLDEN_FILE);
  const auto golden = json::parse(file);
  ASSERT_GE(golden["cases"].size(), 30u);
  for (const auto& test : golden["cases"]) {
    SCOPED_TRACE(test["name"].get<std::string>() + " from " + test["source"].get<std::string>());
    Net net(test["tensors"]);
    const auto optimizer = make(test, net);
    ParameterArena arena(net);
    optimizer->bind(arena);
    for (size_t step = 0; step < test["lr"].size(); ++step) {
      optimizer->set_lr(test["lr"][step]);
      arena.begin_window();
      torch::Tensor loss = torch::zeros({});
      for (size_t i = 0; i < net.ordered.size(); ++i) {
        const auto g = tensor_of(test["gradients"][step][i], net.ordered[i].sizes().vec());
        loss = loss + (net.ordered[i] * g).sum();
      }
      loss.backward();
      arena.end_window();
      optimizer->step();
      for (size_t i = 0; i < net.ordered.size(); ++i) {
        const auto expected = tensor_of(test["values"][step][i], net.ordered[i].sizes().vec());
        ASSERT_TRUE(torch::allclose(net.ordered[i], expected, 1e-5, 1e-6))
            << "step " << step << ", tensor " << i << ", off by "
            << (net.ordered[i] - expected).abs().max().item<float>();
      }
    }
  }
}

}  // namespace
}  // namespace fleet::optim
