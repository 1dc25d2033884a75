// SPDX-License-Identifier: Apache-2.0
// In-place writes to parameters are never lost, and updates are seen by autograd.
#include <gtest/gtest.h>

#include "fleet/io/weights.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/train/small_training.h"

namespace fleet {
namespace {

using testing::Comm;
using testing::copies;
using testing::expect_close;
using testing::mean_loss;
using testing::run_ranks;
using testing::small_batch;
using testing::small_net;
using testing::small_optimizer;

const DistributedStrategy kPureBf16{.amp = true, .amp_configs = {.use_pure_bf16 = true}};

using Write = std::function<void(torch::nn::Sequential&)>;

// The masters after one update whose rate is so small that they stay as they were written.
std::vector<torch::Tensor> written(const std::string& optimizer_name, DistributedStrategy strategy,
                                   const Write& write) {
  auto net = small_net();
  auto optimizer = distributed_optimizer(small_optimizer(optimizer_name, net, 1e-12), strategy);
  const auto update = [&](int64_t step) {
    optimizer.minimize([&] { return mean_loss(net, small_batch(6, step)); });
  };
  update(0);
  {
    const torch::NoGradGuard no_grad;
    write(net);
  }
  update(1);
  update(2);
  std::vector<torch::Tensor> values;
  for (const auto& span : optimizer.arena().spans()) values.push_back(span.value.detach().clone());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(torch::allclose(net->parameters()[i].to(torch::kFloat), values[i], 0.01, 1e-6));
  }
  return values;
}

TEST(WrittenParametersTest, EveryWayOfWritingInPlaceReachesTheMaster) {
  const std::vector<std::pair<const char*, Write>> ways = {
      {"fill_", [](auto& net) { net->parameters()[0].fill_(1); }},
      {"data", [](auto& net) { net->parameters()[0].data().fill_(1); }},
      {"copy_",
       [](auto& net) {
         net->parameters()[0].copy_(torch::ones({10, 6}));
       }},
      {"a raw pointer",
       [](auto& net) {
         auto weight = net->parameters()[0];
         if (weight.scalar_type() == torch::kFloat) {
           std::fill_n(weight.template data_ptr<float>(), weight.numel(), 1.f);
         } else {
           std::fill_n(weight.template data_ptr<c10::BFloat16>(), weight.numel(),
                       c10::BFloat16(1.f));
         }
       }},
  };
  for (const auto& [name, write] : ways) {
    for (const auto* optimizer : {"SGD", "Momentum", "Adam"}) {
      for (const bool is_bf16 : {false, true}) {
        const auto values = written(optimizer, is_bf16 ? kPureBf16 : DistributedStrategy(), write);
        EXPECT_TRUE(torch::allclose(values[0], torch::ones({10, 6}), 1e-6, 1e-6))
            << name << ", " << optimizer << (is_bf16 ? ", bf16" : "");
      }
    }
  }
}

TEST(WrittenParametersTest, LarsAndLambSeeThemToo) {
  for (const bool lars : {true, false}) {
    auto strategy = kPureBf16;
    (lars ? strategy.lars : strategy.lamb) = true;
    const auto values = written(lars ? "Momentum" : "Adam", strategy,
                                [](auto& net) { net->parameters()[0].data().fill_(1); });
    EXPECT_TRUE(torch::allclose(values[0], torch::ones({10, 6}), 1e-6, 1e-6)) << lars;
  }
}

// What is written is rounded to bf16; what is not keeps all digits of its master.
TEST(WrittenParametersTest, WhatWasNotWrittenKeepsItsDigits) {
  const auto before = written("SGD", kPureBf16, [](auto&) {});
  const auto after =
      written("SGD", kPureBf16, [](auto& net) { net->parameters()[0][0].fill_(0.1); });
  EXPECT_TRUE(torch::equal(after[0].slice(0, 1), before[0].slice(0, 1)));
  EXPECT_FALSE(torch::equal(before[0], before[0].to(torch::kBFloat16).to(torch::kFloat)));
  EXPECT_EQ(after[0][0][0].item<float>(), static_cast<float>(c10::BFloat16(0.1f)));
}

TEST(WrittenParametersTest, LoadedWeightsStay) {
  const auto file = ::testing::TempDir() + "written_parameters.safetensors";
  auto other = small_net();
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : other->parameters()) parameter.fill_(0.25);
  }
  save_weights(other, file);
  for (const bool is_bf16 : {false, true}) {
    const auto values = written("Momentum", is_bf16 ? kPureBf16 : DistributedStrategy(),
                                [&](auto& net) { load_weights(net, file); });
    for (const auto& value : values) {
      EXPECT_TRUE(torch::allclose(value, torch::full_like(value, 0.25), 1e-6, 1e-6));
    }
  }
}

// The average of local SGD is of what was written, not of what the masters held.
TEST(WrittenParametersTest, LocalSgdAveragesWhatWasWritten) {
  run_ranks(2, [](const Comm& comm) {
    auto strategy = kPureBf16;
    strategy.localsgd = true;
    strategy.localsgd_configs.k_steps = 100;
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 1e-12), strategy, comm);
    optimizer.minimize(small_batch(6, 0), [&](const Batch& b) { return mean_loss(net, b); });
    {
      const torch::NoGradGuard no_grad;
      net->parameters()[0].data().fill_(comm->rank() == 0 ? 1.0 : 3.0);
    }
    optimizer.sync();
    EXPECT_TRUE(torch::allclose(optimizer.arena().spans()[0].value, torch::full({10, 6}, 2.0)));
  });
}

TEST(WrittenParametersTest, AnUpdateIsSeenByAutograd) {
  struct Rule {
    std::string optimizer;
    bool lars = false, lamb = false;
  };
  for (const auto& rule : {Rule{"SGD"}, Rule{"Momentum"}, Rule{"Adam"}, Rule{"AdamW"},
                           Rule{"Momentum", true, false}, Rule{"Adam", false, true}}) {
    for (const bool is_bf16 : {false, true}) {
      auto net = small_net();
      auto strategy = is_bf16 ? kPureBf16 : DistributedStrategy();
      strategy.lars = rule.lars;
      strategy.lamb = rule.lamb;
      auto optimizer = distributed_optimizer(small_optimizer(rule.optimizer, net, 0.1), strategy);
      const auto x = small_batch(6, 0).data.to(net->parameters()[0].scalar_type());
      torch::Tensor y;
      {
        const auto autocast = optimizer.autocast();
        y = net->forward(x).square().sum();
      }
      optimizer.minimize([&] { return mean_loss(net, small_batch(6, 1)); });
      const auto text = testing::error_message_of<c10::Error>([&] { y.backward(); });
      EXPECT_TRUE(says(text, "modified by an inplace operation"))
          << rule.optimizer << rule.lars << rule.lamb;
    }
  }
}

}  // namespace
}  // namespace fleet
