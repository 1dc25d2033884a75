// SPDX-License-Identifier: Apache-2.0
// Who belongs to an elastic group: ranks that are slow, lost, too few, or started again.
#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "fleet/core/process/restart_needed.h"
#include "fleet/core/text/format.h"

#include "tests/comm/elastic_ranks.h"
#include "tests/support/error_of.h"
#include "tests/support/patience.h"
#include "tests/support/printed_so_far.h"
#include "tests/support/says.h"

namespace fleet::comm {
namespace {

using namespace elastic_test;  // NOLINT
using testing::error_message_of;

TEST(ElasticMembershipTest, NewProcessIsAdmittedReceivesTheStateAndContinues) {
  constexpr int64_t kState = 4711;
  Ranks ranks(3);
  const auto go_on = [](ElasticGroup& group) {
    for (int call = 0; call < 3; ++call) {
      const auto total = own_digit(group);
      sum(group, total);
      EXPECT_EQ(total[0].item<int64_t>(), 111);
    }
    part(group);
    group.leave();
  };
  const auto tell = [](ElasticGroup& group, int64_t state) {
    const auto word = torch::full({1}, state, torch::kLong);
    group.submit({.kind = Kind::kBroadcast, .tensors = {word}, .what = "the state"}).get();
    group.finish_admission();
    return word.item<int64_t>();
  };
  std::atomic<bool> is_lost = false;
  for (const int rank : {1, 2}) {
    ranks.start(rank, [&](ElasticGroup& group) {
      sum(group, own_digit(group));
      while (true) {
        sum(group, own_digit(group));
        if (group.present().size() == 3) continue;
        is_lost = true;
        const auto guests = group.admit();
        if (guests.empty()) continue;
        EXPECT_EQ(guests, std::vector<int>{0});
        break;
      }
      EXPECT_EQ(tell(group, kState), kState);
      go_on(group);
    });
  }
  ranks.start(0, [&](ElasticGroup& group) {
    sum(group, own_digit(group));
    throw SimulatedCrash{};
  });
  while (!is_lost) std::this_thread::sleep_for(1ms);
  ranks.start(0, [&](ElasticGroup& group) {
    EXPECT_TRUE(group.is_joining());
    group.join();
    EXPECT_FALSE(group.is_joining());
    EXPECT_EQ(tell(group, 0), kState) << "of those who were there";
    go_on(group);
  });
  EXPECT_EQ(ranks.join(), kNoErrors);
}

TEST(ElasticMembershipTest, RankWithoutHeartbeatIsLostAfterTheTimeLimit) {
  Ranks ranks(2, {.timeout = launch::patient(2s)});  // for two threads to meet, too
  ranks.start(0, [&](ElasticGroup& group) {
    const auto total = own_digit(group);
    sum(group, total);
    EXPECT_EQ(total[0].item<int64_t>(), 1);
  });
  ranks.start(
      1, [&](ElasticGroup& group) { group.stop(); }, {}, /*has_heartbeat=*/false);
  EXPECT_EQ(ranks.join(), kNoErrors);
}

TEST(ElasticMembershipTest, RankThatWasDeclaredLostGetsAnError) {
  Ranks ranks(2);
  std::atomic<bool> went_on = false;
  ranks.start(0, [&](ElasticGroup& group) {
    ranks.bury(1);
    sum(group, own_digit(group));
    went_on = true;
  });
  ranks.start(1, [&](ElasticGroup& group) {
    while (!went_on) std::this_thread::sleep_for(1ms);
    sum(group, own_digit(group));
  });
  const auto& errors = ranks.join();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_TRUE(says(errors.at(1),
                   "[elastic] rank 1 had no heartbeat for more than 20 s, and the others "
                   "have continued without it"));
}

TEST(ElasticMembershipTest, TooFewRanksNeedARestart) {
  Ranks ranks(2);
  ranks.start(0,
              [&](ElasticGroup& group) {
                EXPECT_TRUE(says(error_message_of<RestartNeeded>([&] {
                                   while (true) sum(group, own_digit(group));
                                 }),
                                 "[elastic] 1 of 2 ranks are left, and --min_ranks is 2\n  fix: "));
              },
              {.min_ranks = 2});
  ranks.start(1, [&](ElasticGroup&) { throw SimulatedCrash{}; });
  EXPECT_EQ(ranks.join(), kNoErrors);
}

TEST(ElasticMembershipTest, NewProcessThatIsTooLateGetsAnError) {
  for (const bool in_order : {true, false}) {
    Ranks ranks(2);
    for (int rank = 0; rank < 2; ++rank) {
      ranks.start(rank, [&](ElasticGroup& group) {
        sum(group, own_digit(group));
        if (in_order) group.leave();
        if (!in_order) throw SimulatedCrash{};
      });
    }
    EXPECT_EQ(ranks.join(), kNoErrors);
    ranks.start(1, [&](ElasticGroup& group) { group.join(); });
    const auto& errors = ranks.join();
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_TRUE(says(errors.at(1),
                     in_order ? "[elastic] the training ended before rank 1 could rejoin"
                              : "[elastic] rank 1 rejoined, and no member of the group is left"));
  }
}

TEST(ElasticMembershipTest, SlowRankIsWaitedForBeyondTheTimeLimit) {
  const auto limit = launch::patient(2s);  // four heartbeats
  Ranks ranks(2, {.timeout = limit});
  for (int rank = 0; rank < 2; ++rank) {
    ranks.start(rank, [&](ElasticGroup& group) {
      if (group.rank() == 1) std::this_thread::sleep_for(2 * limit);
      const auto total = own_digit(group);
      sum(group, total);
      EXPECT_EQ(total[0].item<int64_t>(), 11);
      part(group);
    });
  }
  EXPECT_EQ(ranks.join(), kNoErrors);
}

TEST(ElasticMembershipTest, RankThatWaitsSaysForWhom) {
  const CommunicatorOptions options{.timeout = 60s, .notice_every = 100ms};
  Ranks ranks(3, options);
  const std::string said = "[comm] waits for all_reduce of digits (3 x Long, 0.0 KB): rank 1 (";
  const auto has_been_said = [&] {
    return testing::printed_so_far().find(said) != std::string::npos;
  };
  ::testing::internal::CaptureStdout();
  for (int rank = 0; rank < 3; ++rank) {
    ranks.start(rank, [&](ElasticGroup& group) {
      Communicator comm({&group, [](ElasticGroup*) {}}, options, nullptr);
      if (group.rank() == 1) {
        EXPECT_TRUE(launch::eventually(has_been_said));
      }
      const auto total = own_digit(group);
      comm.all_reduce(total, ReduceOp::kSum, "digits");
      EXPECT_EQ(total[0].item<int64_t>(), 111);
      part(group);
    });
  }
  EXPECT_EQ(ranks.join(), kNoErrors);
  EXPECT_TRUE(says(::testing::internal::GetCapturedStdout(), said));
}

}  // namespace
}  // namespace fleet::comm
