// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/elastic/elastic_group.h"

#include <atomic>
#include <map>
#include <mutex>
#include <random>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/comm/elastic_ranks.h"
#include "tests/support/says.h"

namespace fleet::comm {
namespace {

using namespace elastic_test;  // NOLINT
using FaultPoint = ElasticOptions::FaultPoint;

TEST(ElasticGroupTest, CallsOfAFullGroupAreThoseOfAnyOther) {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    ranks.start(rank, [&](ElasticGroup& group) {
      const auto total = own_digit(group);
      sum(group, total);
      EXPECT_EQ(total[0].item<int64_t>(), 111);
      const auto mean = torch::full({2}, static_cast<float>(group.rank()));
      sum(group, mean, ReduceOp::kAvg);
      EXPECT_EQ(mean[1].item<float>(), 1);
      const auto most = torch::full({2}, static_cast<float>(group.rank()));
      sum(group, most, ReduceOp::kMax);
      EXPECT_EQ(most[1].item<float>(), 2);
      const auto told = torch::full({2}, group.rank(), torch::kLong);
      group.submit({.kind = Kind::kBroadcast, .tensors = {told}, .root = 2, .what = "a word"})
          .get();
      EXPECT_EQ(told[0].item<int64_t>(), 2);
      part(group);
      EXPECT_EQ(group.present(), (std::vector<int>{0, 1, 2}));
    });
  }
  EXPECT_EQ(ranks.join(), kNoErrors);
}

// Which rank dies, and when.
class LossTest : public ::testing::TestWithParam<std::tuple<int, FaultPoint>> {};

TEST_P(LossTest, LeavesTheOthersWithTheSameSums) {
  const auto [victim, moment] = GetParam();
  constexpr int kCalls = 8, kFatal = 4;
  std::mutex mutex;
  std::map<int, std::vector<torch::Tensor>> sums;
  Ranks ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    ElasticOptions elastic;
    if (rank == victim) {
      elastic.inject_fault = [moment = moment](FaultPoint now, int64_t call) {
        if (now == moment && call == kFatal) throw SimulatedCrash{};
      };
    }
    ranks.start(
        rank,
        [&](ElasticGroup& group) {
          auto generator = at::make_generator<at::CPUGeneratorImpl>(group.rank() + 1);
          for (int call = 1; call <= kCalls; ++call) {
            auto values = torch::randn({1000}, generator);
            auto who = own_digit(group);
            group.submit({.kind = Kind::kAllReduce, .tensors = {values, who}, .what = "values"})
                .get();
            const auto contributors = who[0].item<int64_t>();
            int64_t digit = 1;
            for (int i = 0; i < std::get<0>(GetParam()); ++i) digit *= 10;
            if (call != kFatal) {  // in which it may have had its say or not
              EXPECT_EQ(contributors, call < kFatal ? 1111 : 1111 - digit) << "call " << call;
            }
            const std::lock_guard lock(mutex);
            sums[group.rank()].push_back(values);
          }
          part(group);
          EXPECT_EQ(group.present().size(), 3u);
        },
        elastic);
  }
  EXPECT_EQ(ranks.join(), kNoErrors);
  sums.erase(victim);
  ASSERT_EQ(sums.size(), 3u);
  for (const auto& [rank, values] : sums) {
    ASSERT_EQ(values.size(), static_cast<size_t>(kCalls));
    for (size_t call = 0; call < kCalls; ++call) {
      EXPECT_TRUE(torch::equal(values[call], sums.begin()->second[call]))
          << "rank " << rank << " call " << call + 1;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LossTest,
                         ::testing::Combine(::testing::Values(0, 1, 3),
                                            ::testing::Values(FaultPoint::kBarrier,
                                                              FaultPoint::kExchange,
                                                              FaultPoint::kEnd)));

void expect_four_full_sums(ElasticGroup& group) {
  for (int call = 1; call <= 4; ++call) {
    const auto total = own_digit(group);
    sum(group, total);
    EXPECT_EQ(total[2].item<int64_t>(), 111) << "call " << call;
  }
  part(group);
}

TEST(ElasticGroupTest, RankWhoseConnectionBrokeGetsTheResultOfAnother) {
  Ranks ranks(3);
  std::atomic<int> exchanges = 0;
  for (int rank = 0; rank < 3; ++rank) {
    ElasticOptions elastic;
    elastic.inject_fault = [&, rank](FaultPoint now, int64_t call) {
      if (call != 2 || now != FaultPoint::kEnd) return;
      ++exchanges;
      if (rank == 1) throw std::runtime_error("reset by peer");
    };
    ranks.start(rank, expect_four_full_sums, elastic);
  }
  EXPECT_EQ(ranks.join(), kNoErrors);
  EXPECT_EQ(exchanges, 3) << "nobody had to repeat the call";
}

TEST(ElasticGroupTest, AllRepeatACallThatNoneCompleted) {
  Ranks ranks(3);
  std::atomic<int> failures = 0;
  for (int rank = 0; rank < 3; ++rank) {
    ElasticOptions elastic;
    elastic.inject_fault = [&](FaultPoint now, int64_t call) {
      if (call == 2 && now == FaultPoint::kEnd && failures++ < 3) throw std::runtime_error("reset");
    };
    ranks.start(rank, expect_four_full_sums, elastic);
  }
  EXPECT_EQ(ranks.join(), kNoErrors);
  EXPECT_EQ(failures, 6);
}

TEST(ElasticGroupTest, LastRankContinuesAlone) {
  Ranks ranks(2);
  ranks.start(0, [&](ElasticGroup& group) {
    for (int call = 1; call <= 3; ++call) {
      const auto mean = torch::full({2}, 6.0F);
      sum(group, mean, ReduceOp::kAvg);
      EXPECT_EQ(mean[0].item<float>(), call == 1 ? 3 : 6) << "it divides by those who are there";
    }
  });
  ranks.start(1, [&](ElasticGroup& group) {
    sum(group, torch::zeros({2}), ReduceOp::kAvg);
    throw SimulatedCrash{};
  });
  EXPECT_EQ(ranks.join(), kNoErrors);
}

TEST(ElasticGroupTest, DifferentCallsAreNamed) {
  Ranks ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    ranks.start(rank, [&](ElasticGroup& group) {
      group.submit({.what = format("call of rank {}", group.rank())}).get();
    });
  }
  const auto& errors = ranks.join();
  ASSERT_FALSE(errors.empty());
  EXPECT_TRUE(says(errors.begin()->second, "is at 'call of rank ",
                   "' where another rank is at 'call of rank "));
}

// Ranks die at random, at any moment; those who are left have had the same results in every call,
// and each call has the contributions of all of them.
TEST(ElasticGroupTest, RandomLossesLeaveTheSameResults) {
  constexpr int kCalls = 12;
  for (unsigned seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    std::mt19937 random(seed);
    const int size = std::uniform_int_distribution(2, 4)(random);
    const int losses = std::uniform_int_distribution(1, size - 1)(random);
    std::mutex mutex;
    std::map<int, std::vector<int64_t>> results;
    Ranks ranks(size);
    for (int rank = 0; rank < size; ++rank) {
      ElasticOptions elastic;
      if (rank < losses) {
        const int fatal = std::uniform_int_distribution(1, 40)(random);
        elastic.inject_fault = [fatal, moments = 0](FaultPoint, int64_t) mutable {
          if (++moments == fatal) throw SimulatedCrash{};
        };
      }
      ranks.start(
          rank,
          [&](ElasticGroup& group) {
            for (int call = 0; call < kCalls; ++call) {
              const auto total = own_digit(group);
              sum(group, total);
              const std::lock_guard lock(mutex);
              results[group.rank()].push_back(total[1].item<int64_t>());
            }
            part(group);
          },
          elastic);
    }
    EXPECT_EQ(ranks.join(), kNoErrors);
    const auto& last = results[size - 1];
    ASSERT_EQ(last.size(), static_cast<size_t>(kCalls));
    for (const auto& [rank, totals] : results) {
      if (rank < losses) continue;
      EXPECT_EQ(totals, last) << "rank " << rank;
    }
    for (const auto total : last) {
      int64_t rest = total;
      for (int rank = 0; rank < size; ++rank, rest /= 10) {
        if (rank < losses) continue;
        EXPECT_EQ(rest % 10, 1) << total;
      }
    }
  }
}

}  // namespace
}  // namespace fleet::comm
