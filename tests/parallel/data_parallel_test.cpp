// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/data_parallel.h"

#include <latch>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "fleet/core/process/stop_request.h"

#include "tests/support/count_down.h"
#include "tests/support/thread_ranks.h"

namespace fleet {
namespace {

using testing::error_message_of;
using testing::run_ranks;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(uint64_t seed, bool double_metadata = false) {
    static std::mutex mutex;  // ranks are threads here, and the default generator is the process's
    const std::lock_guard lock(mutex);
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)));
    second = register_module("second", torch::nn::Linear(8, 8));
    shared = register_module("shared", torch::nn::Linear(8, 8));
    shared_again = register_module("shared_again", shared.ptr());
    spare = register_module("spare", torch::nn::Linear(8, 8));
    frozen = register_parameter("frozen", torch::ones({8}), /*requires_grad=*/false);
    if (double_metadata) {
      scale = register_parameter("scale", torch::ones({1}, torch::kDouble));
    }
    register_buffer("counter", torch::tensor({static_cast<int64_t>(seed)}, torch::kLong));
  }

  torch::Tensor forward(const torch::Tensor& x, bool use_spare) {
    auto h = torch::relu(first(x)).mean({2, 3});
    h = torch::relu(second(h)) * frozen;
    h = shared_again(torch::relu(shared(h)));
    if (use_spare) h = spare(h);
    auto loss = h.square().mean();
    if (scale.defined()) loss = (loss.to(torch::kDouble) * scale).sum();
    return loss;
  }

  torch::nn::Conv2d first{nullptr};
  torch::nn::Linear second{nullptr}, shared{nullptr}, shared_again{nullptr}, spare{nullptr};
  torch::Tensor frozen, scale;
};
TORCH_MODULE(Net);

torch::Tensor sample(int rank) {
  auto generator = at::detail::createCPUGenerator(100 + static_cast<uint64_t>(rank));
  return torch::randn({2, 3, 6, 6}, generator);
}

std::map<std::string, torch::Tensor> gradients_of(const ModelHandle& model) {
  std::map<std::string, torch::Tensor> gradients;
  for (const auto& [name, tensor] : model.parameters()) {
    if (tensor.grad().defined()) gradients[name] = tensor.grad().clone();
  }
  return gradients;
}

// What one process computes for the mean of all ranks' losses.
std::map<std::string, torch::Tensor> reference(int ranks, bool double_metadata) {
  Net net(7, double_metadata);
  for (int rank = 0; rank < ranks; ++rank) (net->forward(sample(rank), true) / ranks).backward();
  return gradients_of(net);
}

class DataParallelTest : public ::testing::TestWithParam<int> {};

TEST_P(DataParallelTest, GivesEveryRankTheMeanGradientBitForBitAlike) {
  const int ranks = GetParam();
  for (const bool double_metadata : {false, true}) {
    for (const double bucket_mb : {32.0, 0.0005}) {
      std::mutex mutex;
      std::vector<std::map<std::string, torch::Tensor>> seen;
      run_ranks(ranks, [&](const testing::Comm& comm) {
        Net net(7 + static_cast<uint64_t>(comm->rank()), double_metadata);
        ParameterArena arena(net);
        DataParallel parallel(
            arena, comm, {.fuse_grad_size_in_MB = bucket_mb, .last_comm_group_size_MB = 0.0001});
        parallel.broadcast(net);
        EXPECT_EQ(net->named_buffers()["counter"].item<int64_t>(), 7);
        for (int step = 0; step < 2;
             ++step) {  // the second one must not see the first one's gradients
          arena.begin_window();
          parallel.arm();
          (net->forward(sample(comm->rank()), true) / comm->size()).backward();
          const auto metadata = parallel.wait();
          EXPECT_EQ(metadata.weight, comm->size());
        }
        const std::lock_guard lock(mutex);
        seen.push_back(gradients_of(net));
      });
      const auto expected = reference(ranks, double_metadata);
      for (const auto& gradients : seen) {
        ASSERT_EQ(gradients.size(), expected.size());
        for (const auto& [name, gradient] : gradients) {
          EXPECT_TRUE(torch::equal(gradient, seen[0].at(name))) << name;
          EXPECT_TRUE(torch::allclose(gradient, expected.at(name), 1e-5, 1e-7)) << name;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, DataParallelTest, ::testing::Values(1, 2, 4));

TEST(DataParallelTest, CountsAParameterUsedOnOneRankOnlyAsZeroElsewhere) {
  run_ranks(2, [](const testing::Comm& comm) {
    Net net(7);
    ParameterArena arena(net);
    DataParallel parallel(arena, comm, {});
    parallel.broadcast(net);
    arena.begin_window();
    parallel.arm();
    (net->forward(sample(0), /*use_spare=*/comm->rank() == 1) / 2).backward();
    parallel.wait();
    EXPECT_GT(net->spare->weight.grad().abs().sum().item<float>(), 0);
    const auto all = comm->all_gather(net->spare->weight.grad().contiguous(), "a check");
    EXPECT_TRUE(torch::equal(all[0], all[1]));
  });
}

TEST(DataParallelTest, AloneItSendsNothingAndKnowsItsOwnGradients) {
  run_ranks(2, [](const testing::Comm& comm) {
    Net net(7);
    ParameterArena arena(net);
    DataParallel parallel(arena, comm, {});
    parallel.broadcast(net);
    Net expected(7);
    expected->forward(sample(comm->rank()), true).backward();
    parallel.set_no_sync(true);
    if (comm->rank() == 1) return;  // rank 0 does not wait for it
    arena.begin_window();
    parallel.arm({.weight = 5, .loss = 2});
    net->forward(sample(comm->rank()), true).backward();
    const auto metadata = parallel.wait();
    EXPECT_EQ(metadata.ranks, 1);
    EXPECT_EQ(metadata.weight, 5);
    EXPECT_EQ(metadata.loss, 2);
    EXPECT_TRUE(torch::equal(net->second->weight.grad(), expected->second->weight.grad()));
  });
}

TEST(DataParallelTest, NamesParametersThatNoRankUses) {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(2, [&](const testing::Comm& comm) {
    Net net(7);
    ParameterArena arena(net);
    DataParallel parallel(arena, comm, {});
    parallel.broadcast(net);
    arena.begin_window();
    parallel.arm();
    net->forward(sample(0), /*use_spare=*/false).backward();
    const auto text = error_message_of([&] { parallel.wait(); });
    const std::lock_guard lock(mutex);
    errors.push_back(text);
  });
  for (const auto& text : errors) {  // every rank says the same
    EXPECT_NE(text.find("2 of 8 parameters got no gradient on any rank"), std::string::npos)
        << text;
    EXPECT_NE(text.find("spare.weight"), std::string::npos) << text;
    EXPECT_NE(text.find("find_unused_parameters"), std::string::npos) << text;
  }
}

TEST(DataParallelTest, ReportsUnusedParametersWhenAsked) {
  run_ranks(2, [](const testing::Comm& comm) {
    Net net(7);
    ParameterArena arena(net);
    DataParallel parallel(arena, comm, {.find_unused_parameters = true});
    arena.begin_window();
    parallel.arm();
    net->forward(sample(0), /*use_spare=*/false).backward();
    const auto metadata = parallel.wait();
    for (size_t i = 0; i < arena.spans().size(); ++i) {
      EXPECT_EQ(metadata.used[i], arena.spans()[i].name.find("spare") == std::string::npos);
    }
  });
}

TEST(DataParallelTest, SendsHalvesWhenAskedAndStaysAlikeOnAllRanks) {
  run_ranks(2, [](const testing::Comm& comm) {
    Net net(7);
    ParameterArena arena(net);
    DataParallel parallel(arena, comm, {.fp16_allreduce = true});
    parallel.broadcast(net);
    arena.begin_window();
    parallel.arm({.weight = 3, .loss = 1e9});
    (net->forward(sample(comm->rank()), true) / 2).backward();
    const auto metadata = parallel.wait();
    EXPECT_EQ(metadata.weight, 6);
    EXPECT_EQ(metadata.loss, 2e9);  // the head is never halved: 1e9 would be infinite
    const auto all = comm->all_gather(arena.groups()[0].gradients.contiguous(), "a check");
    EXPECT_TRUE(torch::equal(all[0], all[1]));
    const auto expected = reference(2, false);
    for (const auto& [name, gradient] : gradients_of(net)) {
      EXPECT_TRUE(torch::allclose(gradient, expected.at(name), 2e-3, 1e-5)) << name;
    }
  });
}

TEST(DataParallelTest, RefusesModelsThatDiffer) {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(2, [&](const testing::Comm& comm) {
    torch::nn::Sequential net(torch::nn::Linear(4, comm->rank() == 0 ? 3 : 5));
    ParameterArena arena(net);
    DataParallel parallel(arena, comm, {});
    const auto text = error_message_of<UsageError>([&] { parallel.broadcast(net); });
    const std::lock_guard lock(mutex);
    errors.push_back(text);
  });
  for (const auto& text : errors) {
    EXPECT_NE(text.find("the models of rank 0 and rank 1 differ at '0.weight'"), std::string::npos)
        << text;
  }
}

TEST(DataParallelTest, CutsResNet50sParametersIntoTheGuidesFiveBuckets) {
  // ResNet50's 161 parameter tensors: 7x7 stem, blocks of 1x1, 3x3, 1x1 convolutions with norms,
  // classifier.
  torch::nn::Sequential net;
  const auto conv = [&](int64_t in, int64_t out, int64_t kernel) {
    net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).bias(false)));
    net->push_back(torch::nn::BatchNorm2d(out));
  };
  conv(3, 64, 7);
  int64_t in = 64;
  const std::vector<std::pair<int64_t, int>> stages = {{64, 3}, {128, 4}, {256, 6}, {512, 3}};
  for (const auto& [width, blocks] : stages) {
    for (int block = 0; block < blocks; ++block) {
      conv(in, width, 1);
      conv(width, width, 3);
      conv(width, 4 * width, 1);
      if (block == 0) conv(in, 4 * width, 1);
      in = 4 * width;
    }
  }
  net->push_back(torch::nn::Linear(2048, 1000));
  ParameterArena arena(net);
  EXPECT_EQ(arena.spans().size(), 161u);
  EXPECT_EQ(arena.numel(), 25'557'032);
  EXPECT_EQ(plan_buckets(arena, {}).size(), 5u);
  EXPECT_EQ(plan_buckets(arena, {.fuse_all_reduce_ops = false}).size(), 161u);

  // Every element of every span is in exactly one bucket.
  auto counted = torch::zeros_like(arena.groups()[0].values);
  for (const auto& bucket : plan_buckets(arena, {.fuse_grad_size_in_MB = 3})) {
    counted.narrow(0, bucket.begin, bucket.end - bucket.begin).add_(1);
  }
  EXPECT_TRUE((counted == 1).all().item<bool>());
}

// Rank 1 begins before rank 0 and ends after it, whatever else the machine does.
TEST(DataParallelTest, MetadataTellsEveryRankHowLongEachComputed) {
  for (const int64_t places : {0, 2}) {
    std::latch rank_1_computes(1), rank_0_has_computed(1);
    run_ranks(2, [&](const testing::Comm& comm) {
      Net net(7);
      ParameterArena arena(net, {.metadata_slots = places});
      DataParallel parallel(arena, comm, {});
      const auto backward = [&] {
        arena.begin_window();
        parallel.arm();
        net->forward(sample(comm->rank()), true).backward();
      };
      backward();
      EXPECT_TRUE(parallel.wait().compute_seconds.empty()) << "nobody has begun to count";
      if (comm->rank() == 1) {
        parallel.begin_computing();
        rank_1_computes.count_down();
        rank_0_has_computed.wait();
        backward();
      } else {
        rank_1_computes.wait();
        parallel.begin_computing();
        const testing::CountDown end(rank_0_has_computed);
        backward();  // which sends, and waits for nobody
      }
      const auto seconds = parallel.wait().compute_seconds;
      ASSERT_EQ(seconds.size(), static_cast<size_t>(places));
      if (places > 0) {
        EXPECT_GT(seconds[0], 0);
        EXPECT_GT(seconds[1], seconds[0]);
      }
    });
  }
}

TEST(DataParallelTest, MetadataTellsEveryRankThatOneWasAskedToStop) {
  const StopSignals signals;  // forgets the request in the end
  run_ranks(2, [](const testing::Comm& comm) {
    Net net(7);
    ParameterArena arena(net);
    DataParallel parallel(arena, comm, {});
    const auto update = [&] {
      arena.begin_window();
      parallel.arm();
      net->forward(sample(comm->rank()), true).backward();
      return parallel.wait().stop;
    };
    EXPECT_FALSE(update());
    comm->barrier("nobody was asked so far");
    if (comm->rank() == 1) request_stop();
    comm->barrier("now one was");
    EXPECT_TRUE(update());
    parallel.set_no_sync(true);
    EXPECT_FALSE(update()) << "what one rank knows alone is not agreed on";
  });
}

}  // namespace
}  // namespace fleet
