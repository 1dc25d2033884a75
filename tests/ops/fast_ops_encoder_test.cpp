// SPDX-License-Identifier: Apache-2.0
// fast_ops in LibTorch's own encoder.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include "fleet/ops/fast_ops.h"

#include "tests/ops/agreement.h"

namespace fleet {
namespace {

using testing::relative_error;
using testing::Tensors;
using torch::Tensor;

torch::nn::TransformerEncoder encoder(double dropout) {
  torch::manual_seed(9);
  const auto layer = torch::nn::TransformerEncoderLayerOptions(32, 4)
                         .dim_feedforward(64)
                         .dropout(dropout)
                         .activation(torch::kGELU);
  return torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, 2));
}

TEST(FastOpsEncoderTest, AnUnmodifiedEncoderIsTheSameWithoutDropout) {
  const auto x = torch::randn({6, 3, 32}), slopes = torch::randn({6, 3, 32});
  const auto run = [&](FastOps* fast) {
    auto net = encoder(0);
    Tensor loss;
    {
      const FastOpsScope scope(fast);
      loss = (net->forward(x) * slopes).sum();
    }
    loss.backward();
    Tensors result = {loss};
    for (const auto& parameter : net->parameters()) result.push_back(parameter.grad());
    return result;
  };
  FastOps fast;
  const auto own = run(&fast), theirs = run(nullptr);
  EXPECT_EQ(fast.summary(), "2 gelu, 4 layer_norm by Fleet's ops");
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_LE(relative_error(own[i], theirs[i]), 1e-5) << i;
  }
}

TEST(FastOpsEncoderTest, AnUnmodifiedEncodersDropoutIsRepeatable) {
  const auto x = torch::randn({6, 3, 32});
  FastOps fast;
  const auto run = [&] {
    auto net = encoder(0.2);
    torch::manual_seed(4);
    const FastOpsScope scope(fast);
    return net->forward(x);
  };
  const auto one = run();
  EXPECT_EQ(fast.summary(), "8 dropout, 2 gelu, 4 layer_norm by Fleet's ops");
  EXPECT_TRUE(torch::equal(run(), one));
}

}  // namespace
}  // namespace fleet
