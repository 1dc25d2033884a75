// SPDX-License-Identifier: Apache-2.0
// The small layers that the applications do not already hold against other libraries.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "fleet/ops/layers/batch_norm2d.h"
#include "fleet/ops/layers/channels_last.h"
#include "fleet/ops/layers/embedding.h"
#include "fleet/ops/layers/feed_forward.h"
#include "fleet/ops/layers/layer_norm.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::ops {
namespace {

TEST(AddNormTest, DropsOnlyInTraining) {
  torch::manual_seed(2);
  LayerNorm norm(64);
  const auto x = torch::randn({8, 64}), residual = torch::randn({8, 64});
  norm->eval();
  const auto expected = norm(x + residual);
  EXPECT_TRUE(torch::allclose(add_norm(x, residual, norm, 0.5), expected));
  norm->train();
  EXPECT_TRUE(torch::allclose(add_norm(x, residual, norm, 0), expected));
  EXPECT_FALSE(torch::allclose(add_norm(x, residual, norm, 0.5), expected));
  // With everything but the residual dropped, what is normed is the residual.
  EXPECT_TRUE(torch::allclose(add_norm(x, residual, norm, 1), norm(residual)));
}

TEST(FeedForwardTest, DropsOnlyInTraining) {
  torch::manual_seed(2);
  Linear up(8, 32, LinearOptions{.std = 1}), down(32, 8, LinearOptions{.std = 1});
  const auto x = torch::randn({4, 8});
  const FeedForwardOptions drops{.activation = Activation::kRelu, .dropout = 0.5};
  const auto expected = down(up(x).relu());
  EXPECT_FALSE(torch::allclose(feed_forward(x, up, down, drops), expected));
  down->eval();
  EXPECT_TRUE(torch::allclose(feed_forward(x, up, down, drops), expected));
  EXPECT_FALSE(torch::allclose(feed_forward(x, up, down), expected));  // the default is gelu
}

TEST(EmbeddingTest, DoesNotTrainThePadding) {
  Embedding table(5, 3, EmbeddingOptions{.padding = 2});
  EXPECT_EQ(table->weight[2].abs().sum().item<double>(), 0);
  table(torch::tensor({2, 4, 4})).sum().backward();
  EXPECT_EQ(table->weight.grad()[2].abs().sum().item<double>(), 0);
  EXPECT_EQ(table->weight.grad()[4].sum().item<double>(), 6);
}

TEST(BatchNorm2dTest, CountsBatchesAndUsesItsStatisticsInEvaluation) {
  BatchNorm2d norm(2);
  const auto x = torch::randn({4, 2, 3, 3}) * 5 + 7;
  EXPECT_NEAR(norm(x).mean().item<double>(), 0, 1e-5);
  EXPECT_EQ(norm->named_buffers()["num_batches_tracked"].item<int64_t>(), 1);
  norm->eval();
  EXPECT_GT(norm(x).mean().item<double>(), 1);  // the running mean has only begun to move
  EXPECT_EQ(norm->named_buffers()["num_batches_tracked"].item<int64_t>(), 1);
}

TEST(BatchNorm2dTest, OneValuePerChannelIsRefusedInTraining) {
  BatchNorm2d norm(2);
  EXPECT_TRUE(says(testing::error_message_of([&] {
                     norm(torch::randn({1, 2, 1, 1}));
                   }),
                   "[batch_norm] one value per channel has no variance: the batch is [1, 2, 1, 1]",
                   "fix: use larger images, or a batch size "));
  norm = BatchNorm2d(2);
  norm(torch::randn({1, 2, 2, 1}));
  norm->eval();
  EXPECT_TRUE(norm(torch::randn({1, 2, 1, 1})).isfinite().all().item<bool>());
}

TEST(ChannelsLastTest, LaysConvolutionsOutAndChangesNoValue) {
  torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3), torch::nn::Flatten(),
                            torch::nn::Linear(8 * 4 * 4, 2));
  const auto x = torch::randn({2, 3, 6, 6});
  const auto before = net->forward(x);
  const auto linear = net->parameters()[2].strides().vec();
  to_channels_last(*net);
  EXPECT_TRUE(net->parameters()[0].is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_FALSE(net->parameters()[0].is_contiguous());
  EXPECT_EQ(net->parameters()[2].strides().vec(), linear);
  EXPECT_TRUE(torch::allclose(net->forward(x), before, 1e-5, 1e-6));
}

}  // namespace
}  // namespace fleet::ops
