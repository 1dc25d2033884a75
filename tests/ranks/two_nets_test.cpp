// SPDX-License-Identifier: Apache-2.0
// Two nets with an optimizer each, on two ranks, in one snapshot: killed and asked to stop at
// random points they end with the bits of a run that nobody disturbed.

#include <signal.h>

#include <random>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"
#include "fleet/snapshot/snapshot_folder.h"

#include "tests/data/temporary_folder.h"
#include "tests/ranks/ranks.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

const Words kOneThread = with({"OMP_NUM_THREADS=1"});
constexpr auto kPatience = 60s;

Words two_nets_job(const std::filesystem::path& dir, const Words& strategy) {
  Words words = {"--nproc_per_node=2", "--grace_s=60", beside("test_two_nets_program")};
  if (!dir.empty()) words.push_back("--snapshot_dir=" + dir.string());
  words.emplace_back("--save_every=6");  // three updates of each
  words.insert(words.end(), strategy.begin(), strategy.end());
  return words;
}

std::pair<std::string, std::string> digests(const Launched& run) {
  return {after(run.log(0), "digest"), after(run.log(1), "digest")};
}

class TwoNetsTest : public testing::TestWithParam<Words> {};

TEST_P(TwoNetsTest, DisturbedAtRandomPointsTheyEndWithTheBitsOfAnUndisturbedRun) {
  const auto& strategy = GetParam();
  Launched undisturbed(two_nets_job("", strategy), kOneThread);
  ASSERT_EQ(undisturbed.wait(kPatience), 0) << undisturbed.output();
  ASSERT_FALSE(after(undisturbed.log(1), "digest").empty()) << undisturbed.log(1);

  const TemporaryFolder dir;
  std::mt19937_64 random(17);
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(format("round {}", round));
    Launched run(two_nets_job(dir.path(), strategy), kOneThread);
    const auto updates = 4 + random() % 8;  // of this attempt: more than between two snapshots
    ASSERT_TRUE(eventually([&] { return losses(run.log(0)).size() >= updates; }, kPatience))
        << run.output();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    if (round % 2 == 0) {
      const auto victim = static_cast<int>(random() % 2);
      ::kill(std::stoi(after(run.log(victim), "pid")), SIGKILL);
      ASSERT_NE(run.wait(kPatience), 0) << run.output();
      continue;
    }
    run.send(SIGTERM);
    ASSERT_EQ(run.wait(kPatience), 143) << run.output();
    const auto step = snapshots_in(dir.path()).front();
    EXPECT_TRUE(says(run.output(), format("all ranks stop after generator's update {0}, "
                                          "discriminator's update {0}: saved in ",
                                          step / 2)));
    EXPECT_EQ(losses(run.log(0)).rbegin()->first, step / 2) << "the update that was saved";
    EXPECT_EQ(losses(run.log(1)).rbegin()->first, step / 2);
  }
  Launched last(two_nets_job(dir.path(), strategy), kOneThread);
  ASSERT_EQ(last.wait(kPatience), 0) << last.output();
  EXPECT_GT(std::stoi(after(last.log(0), "resumed")), 0) << "nothing was shown";
  EXPECT_EQ(digests(last), digests(undisturbed));
}

INSTANTIATE_TEST_SUITE_P(Strategies, TwoNetsTest,
                         testing::Values(Words{},
                                         Words{"--localsgd", "--localsgd_configs.k_steps=3"}),
                         [](const auto& info) {
                           return info.param.empty() ? "Plain" : "LocalSgd";
                         });

}  // namespace
}  // namespace fleet::launch
