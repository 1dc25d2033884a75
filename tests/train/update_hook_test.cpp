// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/update_hook.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/snapshot/snapshots.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/says.h"
#include "tests/train/small_training.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

// Counts, and adds up what it sees of the parameters.
class SumOfWeights : public UpdateHook {
 public:
  explicit SumOfWeights(const torch::nn::Sequential& net) : weight_(net->parameters().front()) {}

  std::string_view name() const override { return "sum"; }
  void after_update(const UpdateReport& report) override {
    seen.push_back(report);
    if (report.updated) sum += weight_.detach();
  }
  std::vector<NamedTensor> state() override { return {{"weights/0", sum}}; }

  torch::Tensor sum = torch::zeros({10, 6});
  std::vector<UpdateReport> seen;

 private:
  torch::Tensor weight_;
};

struct Training {
  explicit Training(const DistributedStrategy& strategy = {},
                    const Comm& comm = std::make_shared<comm::Communicator>())
      : optimizer(small_optimizer("Momentum", net, 0.1), strategy, comm),
        hook(std::make_shared<SumOfWeights>(net)) {
    optimizer.attach(hook);
  }

  void minimize(int64_t step) {
    optimizer.minimize(small_batch(8, step),
                       [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
  }

  torch::nn::Sequential net = small_net();
  DistributedOptimizer optimizer;
  std::shared_ptr<SumOfWeights> hook;
};

TEST(UpdateHookTest, SeesEveryUpdateAndNoMicroBatch) {
  Training training({.gradient_merge = true, .gradient_merge_configs = {.k_steps = 2}});
  for (int call = 0; call < 4; ++call) {
    training.optimizer.minimize([&] { return mean_loss(training.net, small_batch(4, call)); });
    EXPECT_EQ(training.hook->seen.size(), static_cast<size_t>((call + 1) / 2));
  }
  EXPECT_TRUE(training.hook->seen.back().updated);
  EXPECT_GT(training.hook->sum.abs().sum().item<float>(), 0);
  EXPECT_EQ(training.optimizer.hook<SumOfWeights>(), training.hook.get());
}

TEST(UpdateHookTest, IsCalledAfterTheAverageOfLocalSgd) {
  run_ranks(2, [](const Comm& comm) {
    Training training({.localsgd = true, .localsgd_configs = {.k_steps = 3}}, comm);
    for (int64_t step = 0; step < 3; ++step) training.minimize(step * 2 + comm->rank());
    ASSERT_EQ(training.hook->seen.size(), 3U);
    EXPECT_FALSE(training.hook->seen[1].synced);
    EXPECT_TRUE(training.hook->seen[2].synced);
    // The last of the three weights that it added up is the same on both ranks.
    const auto sum = training.hook->sum.clone();
    training.hook->sum.zero_();
    training.hook->after_update({.updated = true});
    EXPECT_TRUE(same_everywhere(comm, training.hook->sum));
    EXPECT_FALSE(same_everywhere(comm, sum)) << "ranks had weights of their own in between";
    training.optimizer.sync();
  });
}

TEST(UpdateHookTest, SnapshotsHoldItsState) {
  const TemporaryFolder folder;
  const SnapshotOptions options{.snapshot_dir = folder.path(), .save_every = 2};
  Training whole;
  for (int64_t step = 0; step < 4; ++step) whole.minimize(step);
  for (const int64_t begin : {0, 2}) {
    Training training;
    Snapshots snapshots(training.optimizer, options);
    EXPECT_EQ(training.optimizer.updates(), begin);
    for (int64_t step = begin; step < begin + 2; ++step) {
      training.minimize(step);
      snapshots.after_update();
    }
    snapshots.finish();
    if (begin == 2) {
      EXPECT_TRUE(torch::equal(training.hook->sum, whole.hook->sum));
    }
  }
  // One that the snapshot knows nothing of, or that is gone, is told by name.
  auto net = small_net();
  DistributedOptimizer without(small_optimizer("Momentum", net, 0.1), {},
                               std::make_shared<comm::Communicator>());
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { Snapshots(without, options); }),
                   "unexpected: sum/weights/0"));
}

TEST(UpdateHookTest, NamesAreUnique) {
  Training training;
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { training.optimizer.attach(training.hook); }),
                   "the name 'sum' of a hook is empty, or taken"));
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { training.optimizer.attach(nullptr); }),
                   "the name '' of a hook"));
}

TEST(UpdateHookTest, TrustRatiosArePrintedEveryFewUpdates) {
  Training training({.lars = true, .lars_configs = {.log_every = 2}});
  ::testing::internal::CaptureStdout();
  for (int64_t step = 0; step < 4; ++step) training.minimize(step);
  const auto text = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(says(text, "[lars] update 2: 0.weight trust ratio ", "[lars] update 4: 0.weight "));
  EXPECT_EQ(text.find("update 1:"), text.npos) << text;
  EXPECT_EQ(text.find("update 3:"), text.npos) << text;
}

}  // namespace
}  // namespace fleet
