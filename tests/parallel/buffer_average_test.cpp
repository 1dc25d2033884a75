// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/buffer_average.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

namespace fleet {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    table = register_buffer("table", torch::arange(3));
    scale = register_buffer("scale", torch::full({2, 2}, 0.1));
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor table, scale;
};
TORCH_MODULE(Net);

// What the ranks of `nets` make of their buffers; `weights` is what each has learned from.
void average(std::vector<Net>& nets, std::vector<BufferAverage>& averages,
             const std::vector<double>& weights) {
  const auto count = averages[0].counter_count();
  auto sums = torch::zeros({averages[0].sum_count()}, torch::kDouble);
  auto counters = torch::zeros({count}, torch::kDouble);
  double weight = 0;
  for (size_t rank = 0; rank < nets.size(); ++rank) {
    auto own = torch::zeros_like(sums);
    auto own_counters = torch::zeros_like(counters);
    averages[rank].write(weights[rank], own, own_counters);
    sums += own;
    counters = torch::maximum(counters, own_counters);
    weight += weights[rank];
  }
  for (auto& item : averages) {
    item.read(sums / weight, counters);
    item.apply();
  }
}

TEST(BufferAverageTest, VarianceIsThatOfAllSamplesTogether) {
  std::vector<Net> nets = {Net(), Net(), Net()};
  std::vector<BufferAverage> averages;
  for (auto& net : nets) averages.emplace_back(net);
  // Statistics of one rank's samples each, biased as a pool of equal parts needs them.
  std::vector<torch::Tensor> samples;
  for (size_t rank = 0; rank < nets.size(); ++rank) {
    auto generator = at::detail::createCPUGenerator(rank + 1);
    samples.push_back(torch::randn({50, 4}, generator) * (1.0 + static_cast<double>(rank)) +
                      3.0 * static_cast<double>(rank));
    nets[rank]->norm->running_mean.copy_(samples[rank].mean(0));
    nets[rank]->norm->running_var.copy_(samples[rank].var(0, /*unbiased=*/false));
    nets[rank]->norm->num_batches_tracked.fill_(static_cast<int64_t>(10 + rank));
  }
  average(nets, averages, {50, 50, 50});
  const auto pool = torch::cat(samples);
  for (const auto& net : nets) {
    EXPECT_TRUE(torch::allclose(net->norm->running_mean, pool.mean(0), 1e-5, 1e-6));
    EXPECT_TRUE(torch::allclose(net->norm->running_var, pool.var(0, false), 1e-5, 1e-6));
    EXPECT_TRUE(torch::equal(net->norm->running_var, nets[0]->norm->running_var));
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 12);
  }
}

TEST(BufferAverageTest, RanksAreWeightedByWhatTheyHaveSeen) {
  std::vector<Net> nets = {Net(), Net()};
  std::vector<BufferAverage> averages;
  for (auto& net : nets) averages.emplace_back(net);
  nets[0]->norm->running_mean.fill_(1);
  nets[1]->norm->running_mean.fill_(5);
  nets[0]->norm->running_var.fill_(2);
  nets[1]->norm->running_var.fill_(6);
  average(nets, averages, {3, 1});
  EXPECT_EQ(nets[1]->norm->running_mean[0].item<float>(), 2);     // (3 * 1 + 5) / 4
  EXPECT_EQ(nets[1]->norm->running_var[0].item<float>(), 3 + 3);  // + (3 * 1 + 9) / 4
  average(nets, averages, {1, 1});
  EXPECT_EQ(nets[0]->norm->running_var[0].item<float>(), 6) << "equal ranks add nothing";
}

TEST(BufferAverageTest, WhatNobodyChangedStaysBitForBit) {
  std::vector<Net> nets = {Net(), Net(), Net()};
  std::vector<BufferAverage> averages;
  for (auto& net : nets) averages.emplace_back(net);
  average(nets, averages, {7, 11, 13});
  const Net fresh;
  for (const auto& net : nets) {
    EXPECT_TRUE(torch::equal(net->scale, fresh->scale));
    EXPECT_TRUE(torch::equal(net->table, fresh->table));
    EXPECT_TRUE(torch::equal(net->norm->running_var, fresh->norm->running_var));
  }
}

}  // namespace
}  // namespace fleet
