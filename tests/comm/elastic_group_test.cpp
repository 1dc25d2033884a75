// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/elastic/elastic_group.h"

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "fleet/comm/elastic/liveness.h"
#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/core/process/restart_needed.h"
#include "fleet/core/text/format.h"

#include "tests/support/error_of.h"
#include "tests/support/launched.h"
#include "tests/support/patience.h"
#include "tests/support/printed_so_far.h"
#include "tests/support/says.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;
using Kind = Collective::Kind;
using FaultPoint = ElasticOptions::FaultPoint;
using testing::error_message_of;

/// The end of a rank that is a thread.
struct SimulatedCrash {};

// Ranks as threads; one that throws SimulatedCrash is lost, like a process that has ended.
class Ranks {
 public:
  using Body = std::function<void(ElasticGroup&)>;
  explicit Ranks(int size, CommunicatorOptions options = {.timeout = 20s})
      : size_(size), options_(std::move(options)), lost_declarer_(store_, size, 60s) {}
  ~Ranks() { join(); }

  void start(int rank, const Body& body, ElasticOptions elastic = {}, bool has_heartbeat = true) {
    threads_.emplace_back([=, this] {
      std::optional<PeerWatch> watch;
      try {
        watch.emplace(store_, rank, size_, "127.0.0.1");
        if (has_heartbeat) watch->gather_identities();
        ElasticGroup group(store_, rank, size_, options_, elastic);
        body(group);
      } catch (const SimulatedCrash&) {
        bury(rank);
      } catch (const std::exception& error) {
        bury(rank);
        const std::lock_guard lock(mutex_);
        errors_[rank] = error.what();
      }
    });
  }

  /// What ranks have thrown, by rank, once all have ended.
  const std::map<int, std::string>& join() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
    return errors_;
  }
  void bury(int rank) {
    const std::lock_guard lock(mutex_);
    lost_declarer_.declare_lost(*lost_declarer_.slot_of(rank, 1s));
  }

 private:
  int size_;
  CommunicatorOptions options_;
  Store store_ = Store::in_memory();
  std::mutex mutex_;
  Liveness lost_declarer_;
  std::map<int, std::string> errors_;
  std::vector<std::thread> threads_;
};

const std::map<int, std::string> kNoErrors;

void sum(ElasticGroup& group, const torch::Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
  group.submit({.kind = Kind::kAllReduce, .tensors = {tensor}, .op = op, .what = "a sum"}).get();
}

// Before the end, as in a program: a rank that leaves breaks its connections.
void part(ElasticGroup& group) { group.submit({.what = "the end"}).get(); }

// Says in the sum who has contributed.
torch::Tensor own_digit(const ElasticGroup& group) {
  int64_t digit = 1;
  for (int i = 0; i < group.rank(); ++i) digit *= 10;
  return torch::full({3}, digit, torch::kLong);
}

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

TEST(ElasticGroupTest, NewProcessIsAdmittedReceivesTheStateAndContinues) {
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

TEST(ElasticGroupTest, SlowRankIsWaitedForBeyondTheTimeLimit) {
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

TEST(ElasticGroupTest, RankThatWaitsSaysForWhom) {
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

TEST(ElasticGroupTest, RankWithoutHeartbeatIsLostAfterTheTimeLimit) {
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

TEST(ElasticGroupTest, RankThatWasDeclaredLostGetsAnError) {
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

TEST(ElasticGroupTest, TooFewRanksNeedARestart) {
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

TEST(ElasticGroupTest, NewProcessThatIsTooLateGetsAnError) {
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
