// SPDX-License-Identifier: Apache-2.0
// Gradients that reach a model outside of its own optimizer's calls are no part of its updates.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>

#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/train/small_training.h"

namespace fleet {
namespace {

using testing::Comm;
using testing::copies;
using testing::error_message_of;
using testing::expect_close;
using testing::expect_equal;
using testing::mean_loss;
using testing::run_ranks;
using testing::small_batch;
using testing::small_net;
using testing::small_optimizer;
using testing::Tensors;

constexpr int64_t kMicroBatches = 3;

struct Gan {
  torch::nn::Linear generator{nullptr};
  torch::nn::Sequential discriminator{nullptr};
  Gan() {
    discriminator = small_net();
    torch::manual_seed(4);
    generator = torch::nn::Linear(2, 6);
  }
  torch::Tensor noise(int64_t step) const {
    auto noise = at::detail::createCPUGenerator(static_cast<uint64_t>(step) + 70);
    return torch::randn({5, 2}, noise);
  }
  torch::Tensor real_loss(int64_t step) { return mean_loss(discriminator, small_batch(5, step)); }
  torch::Tensor fake_loss(int64_t step) {
    return discriminator->forward(generator->forward(noise(step))).square().mean();
  }
  Tensors values() {
    auto all = copies(discriminator->parameters());
    for (const auto& tensor : copies(generator->parameters())) all.push_back(tensor);
    return all;
  }
};

// Micro-batches of the two models alternate, and the discriminator's last comes before the
// generator's: `discriminate` and `generate` drive one micro-batch backward, and update with the
// last.
template <typename Discriminate, typename Generate>
void alternate(Discriminate&& discriminate, Generate&& generate) {
  for (int64_t update = 0; update < 3; ++update) {
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      discriminate(10 * update + i, i + 1 == kMicroBatches);
      generate(10 * update + i, i + 1 == kMicroBatches);
    }
  }
}

// With gradients that nothing else can reach.
Tensors train_plain_gan() {
  Gan gan;
  struct Side {
    std::vector<torch::Tensor> parameters;
    torch::optim::SGD optimizer;
    explicit Side(const std::vector<torch::Tensor>& parameters)
        : parameters(parameters),
          optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9)) {}
    std::vector<torch::Tensor> sums = {};
    void add(const torch::Tensor& loss, bool is_last) {
      const auto gradients = torch::autograd::grad({loss / kMicroBatches}, parameters);
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (sums.size() == i) {
          sums.push_back(gradients[i]);
        } else {
          sums[i] = sums[i] + gradients[i];
        }
      }
      if (!is_last) return;
      for (size_t i = 0; i < sums.size(); ++i) parameters[i].mutable_grad() = sums[i];
      optimizer.step();
      sums.clear();
    }
  };
  Side discriminator(gan.discriminator->parameters()), generator(gan.generator->parameters());
  alternate([&](int64_t i, bool last) { discriminator.add(gan.real_loss(i), last); },
            [&](int64_t i, bool last) { generator.add(gan.fake_loss(i), last); });
  return gan.values();
}

struct GanOptimizers {
  DistributedOptimizer discriminator, generator;
  explicit GanOptimizers(Gan& gan)
      : discriminator(small_optimizer("Momentum", gan.discriminator, 0.1), merged(), single_rank()),
        generator(
            std::make_unique<optim::Momentum>(gan.generator, optim::MomentumOptions{.lr = 0.1}),
            merged(), single_rank()) {}
  static Comm single_rank() { return std::make_shared<comm::Communicator>(); }
  static DistributedStrategy merged() {
    return {.gradient_merge = true, .gradient_merge_configs = {.k_steps = kMicroBatches}};
  }
};

// Each backward of the generator runs through the discriminator, whose window is open.
TEST(ForeignGradientsTest, AGanUnderGradientMergeTrainsAsItShould) {
  Gan gan;
  GanOptimizers optimizers(gan);
  alternate(
      [&](int64_t i, bool) { optimizers.discriminator.minimize([&] { return gan.real_loss(i); }); },
      [&](int64_t i, bool) { optimizers.generator.minimize([&] { return gan.fake_loss(i); }); });
  expect_close(gan.values(), train_plain_gan(), 1e-4, 1e-6);
}

TEST(ForeignGradientsTest, AGanInTheUsersOwnLoopTrainsAsItShould) {
  Gan gan;
  GanOptimizers optimizers(gan);
  const auto run = [](DistributedOptimizer& optimizer, const torch::Tensor& loss, bool last) {
    optimizer.backward(loss);
    if (last) optimizer.step();
  };
  alternate([&](int64_t i, bool last) { run(optimizers.discriminator, gan.real_loss(i), last); },
            [&](int64_t i, bool last) { run(optimizers.generator, gan.fake_loss(i), last); });
  expect_close(gan.values(), train_plain_gan(), 1e-4, 1e-6);
}

TEST(ForeignGradientsTest, AStrayBackwardLeavesAnOpenWindowAsItWas) {
  for (const bool is_bf16 : {false, true}) {
    const auto trained = [&](bool strays) {
      DistributedStrategy strategy{.gradient_merge = true,
                                   .gradient_merge_configs = {.k_steps = 2}};
      if (is_bf16) {
        strategy.amp = true;
        strategy.amp_configs.use_pure_bf16 = true;
      }
      auto net = small_net();
      DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), strategy,
                                     std::make_shared<comm::Communicator>());
      const auto stray = [&] {
        if (!strays) return;
        auto x = small_batch(5, 99).data;
        if (is_bf16) x = x.to(torch::kBFloat16);
        const auto scope = optimizer.autocast();
        net->forward(x).square().sum().backward();
      };
      for (int64_t i = 0; i < 6; ++i) {
        stray();
        optimizer.minimize([&] { return mean_loss(net, small_batch(5, i)); });
        stray();
      }
      Tensors values;
      for (const auto& span : optimizer.arena().spans()) values.push_back(span.value.clone());
      return values;
    };
    expect_equal(trained(true), trained(false));
  }
}

TEST(ForeignGradientsTest, BetweenTwoUpdatesTheModelIsAsTorchHasIt) {
  auto net = small_net();
  auto plain = small_net();
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0), {},
                                 std::make_shared<comm::Communicator>());
  optimizer.minimize([&] { return mean_loss(net, small_batch(5, 1)); });
  net->zero_grad();
  for (const auto& some : {net, plain}) {
    mean_loss(some, small_batch(5, 2)).backward();
    mean_loss(some, small_batch(5, 3)).backward();
  }
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(net->parameters()[i].grad(), plain->parameters()[i].grad())) << i;
  }
}

TEST(ForeignGradientsTest, ABackwardInsideTheClosureIsRefusedByName) {
  auto net = small_net();
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), {},
                                 std::make_shared<comm::Communicator>());
  const auto before = copies(net->parameters());
  const auto text = error_message_of([&] {
    optimizer.minimize([&] {
      mean_loss(net, small_batch(5, 1)).backward();
      return mean_loss(net, small_batch(5, 2));
    });
  });
  EXPECT_TRUE(says(text, "a backward inside the loss closure reached parameter '2.bias'",
                   "add that loss to the one that the closure returns"));
  expect_equal(copies(net->parameters()), before);
  optimizer.minimize([&] { return mean_loss(net, small_batch(5, 2)); });
  EXPECT_EQ(optimizer.updates(), 1);
}

// A gradient penalty takes gradients without accumulating them.
TEST(ForeignGradientsTest, GradientsTakenInsideTheClosureAreFine) {
  auto net = small_net();
  auto plain = small_net();
  const auto loss_of = [](torch::nn::Sequential some, int64_t step) {
    const auto x = small_batch(5, step).data.requires_grad_();
    const auto y = some->forward(x).square().mean();
    const auto gradient = torch::autograd::grad({y}, {x}, {}, true, true)[0];
    return y + gradient.square().sum();
  };
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), {},
                                 std::make_shared<comm::Communicator>());
  torch::optim::SGD sgd(plain->parameters(), 0.1);
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.minimize([&] { return loss_of(net, step); });
    sgd.zero_grad();
    loss_of(plain, step).backward();
    sgd.step();
  }
  expect_close(copies(net->parameters()), copies(plain->parameters()), 1e-5);
}

}  // namespace
}  // namespace fleet
