// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/elastic/membership.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/comm/crashing_store.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 60s;
constexpr int64_t kNever = 1'000'000'000;

// Ranks that are threads, which agree on generations while some of them die.
class Ranks {
 public:
  explicit Ranks(int size) : size_(size), alive_(size) {
    table_->setTimeout(kLimit);
    lost_declarer_.emplace(view(kNever), /*rank=*/size, kLimit);
  }

  /// `rank` dies at its `last`th question to the store, or not at all. It asks for a new generation
  /// `rounds` times, and takes part in those of the others until all are content.
  void start(int rank, int64_t last, bool arrives_late, int rounds) {
    threads_.emplace_back([=, this] {
      const auto store = c10::make_intrusive<CrashingStore>(table_, last, crashes_);
      std::optional<Slot> slot;
      try {
        Liveness liveness(Store::over(store), rank, kLimit);
        slot = liveness.own();
        Membership membership(Store::over(store), liveness);
        live(membership, liveness, rounds);
      } catch (const SimulatedCrash&) {
        bury(*slot);
        if (!arrives_late) return;
        std::this_thread::sleep_for(2ms);
        store->arrive_late();
      }
    });
  }

  /// The generation in which each survivor ended.
  const std::map<int, Generation>& finish() {
    for (auto& thread : threads_) thread.join();
    return current_;
  }
  int alive() const { return alive_; }
  /// Two lists of the same generation; empty: none.
  const std::string& contradiction() const { return contradiction_; }

 private:
  Store view(int64_t last) {
    return Store::over(c10::make_intrusive<CrashingStore>(table_, last, crashes_));
  }

  void bury(const Slot& slot) {
    const std::lock_guard lock(mutex_);
    --alive_;
    content_.erase(slot.rank);
    current_.erase(slot.rank);
    lost_declarer_->declare_lost(slot);
    crashes_.crash_is_known();
  }

  void live(Membership& membership, Liveness& liveness, int rounds) {
    const int rank = liveness.own().rank;
    note(rank, membership.form(size_, kLimit));
    int done = 0;
    while (!is_over(rank, done == rounds)) {
      const bool has_to =
          membership.is_over() || !liveness.lost_among(membership.current().slots()).empty();
      if (!has_to && done == rounds) continue;
      if (!has_to) ++done;
      const auto next = membership.next({.finished = done}, {});
      ASSERT_TRUE(next) << "rank " << rank << " is alive and was left out";
      note(rank, *next);
    }
  }

  // Once all have joined, no rank dies any more; then all must reach one generation.
  bool is_over(int rank, bool is_content) {
    const std::lock_guard lock(mutex_);
    if (is_content) content_.insert(rank);
    if (static_cast<int>(content_.size()) == alive_) crashes_.switch_off();
    const auto number = current_.at(rank).number;
    return crashes_.is_off() && static_cast<int>(current_.size()) == alive_ &&
           static_cast<int>(current_.at(rank).members.size()) == alive_ &&
           std::all_of(current_.begin(), current_.end(),
                       [&](const auto& item) { return item.second.number == number; });
  }

  void note(int rank, const Generation& generation) {
    std::string text;
    for (const int member : generation.ranks()) text += format(" {}", member);
    const std::lock_guard lock(mutex_);
    current_[rank] = generation;
    const auto [known, is_first] = seen_.emplace(generation.number, text);
    if (!is_first && known->second != text) {
      contradiction_ = format("generation {}:{} and{}", generation.number, known->second, text);
    }
  }

  int size_;
  c10::intrusive_ptr<c10d::Store> table_ = c10::make_intrusive<c10d::HashStore>();
  CrashSwitch crashes_;
  std::optional<Liveness> lost_declarer_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // guards what follows
  int alive_;
  std::set<int> content_;
  std::map<int64_t, std::string> seen_;
  std::string contradiction_;
  std::map<int, Generation> current_;
};

void expect_survivors_agree(Ranks& ranks, int least) {
  const auto& last = ranks.finish();
  EXPECT_EQ(ranks.contradiction(), "");
  EXPECT_EQ(static_cast<int>(last.size()), ranks.alive());
  EXPECT_GE(ranks.alive(), least);
  for (const auto& [rank, generation] : last) {
    EXPECT_EQ(static_cast<int>(generation.members.size()), ranks.alive()) << "rank " << rank;
    EXPECT_TRUE(generation.index_of(rank)) << "rank " << rank;
  }
}

TEST(MembershipTest, AllRanksAgreeAgainAndAgain) {
  Ranks ranks(4);
  for (int rank = 0; rank < 4; ++rank) ranks.start(rank, kNever, false, /*rounds=*/5);
  expect_survivors_agree(ranks, 4);
}

// One rank dies at each of its questions in turn: before and after its announcement, its claim, its
// list, its meeting.
class DeathTest : public ::testing::TestWithParam<bool> {};

TEST_P(DeathTest, OfOneRankAtAnyStepLeavesTheOthersInOneGroup) {
  constexpr int kFirst = 8, kLast = 90;  // the slot is taken by then; all rounds are over by then
  int deaths = 0;
  for (int64_t step = kFirst; step < kLast; ++step) {
    SCOPED_TRACE(format("step {}", step));
    Ranks ranks(3);
    ranks.start(0, step, GetParam(), 2);
    for (int rank = 1; rank < 3; ++rank) ranks.start(rank, kNever, false, 2);
    expect_survivors_agree(ranks, 2);
    deaths += 3 - ranks.alive();
  }
  EXPECT_GT(deaths, 30) << "the others were done before";
}

INSTANTIATE_TEST_SUITE_P(Bytes, DeathTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "ArriveLate" : "AreLost"; });

TEST(MembershipTest, RandomDeathsOfSeveralRanksLeaveTheOthersInOneGroup) {
  for (unsigned seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    std::mt19937 random(seed);
    const int size = std::uniform_int_distribution(2, 6)(random);
    const int deaths = std::uniform_int_distribution(1, size - 1)(random);
    std::vector<int> order(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    Ranks ranks(size);
    for (int i = 0; i < size; ++i) {
      const int64_t last = std::uniform_int_distribution(8, 120)(random);
      ranks.start(order[static_cast<size_t>(i)], i < deaths ? last : kNever, random() % 2 == 0, 3);
    }
    expect_survivors_agree(ranks, size - deaths);
  }
}

// Two ranks in one thread each, with a table to write into.
struct Rank {
  Rank(const Store& store, int rank, std::chrono::milliseconds limit = kLimit)
      : liveness(store, rank, limit), membership(store, liveness) {}

  Liveness liveness;
  Membership membership;
};

void at_once(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::thread> threads;
  for (const auto& body : bodies) threads.emplace_back(body);
  for (auto& thread : threads) thread.join();
}

TEST(MembershipTest, InvitedProcessTakesTheSlotOfTheOneBefore) {
  const auto store = Store::in_memory();
  Rank first(store, 0);
  {
    Rank second(store, 1);
    at_once(
        {[&] { first.membership.form(2, kLimit); }, [&] { second.membership.form(2, kLimit); }});
  }
  Rank again(store, 1);
  EXPECT_TRUE(again.membership.has_formed());
  EXPECT_TRUE(first.liveness.is_lost({1, 1})) << "another process has its slot";
  ASSERT_TRUE(first.membership.next({.finished = 7}, {}));
  EXPECT_EQ(first.membership.current().ranks(), std::vector<int>{0});

  EXPECT_TRUE(first.membership.join_requests({1}).empty());
  again.membership.request_join();
  const auto asking = first.membership.join_requests({1});
  ASSERT_EQ(asking, (std::vector<Slot>{{1, 2}}));
  EXPECT_FALSE(again.membership.invitation());
  at_once({[&] { first.membership.next({.finished = 8}, {.after = 8, .slots = asking}); },
           [&] {
             std::optional<Invitation> invitation;
             while (!(invitation = again.membership.invitation())) std::this_thread::yield();
             EXPECT_EQ(invitation->after, 8);
             again.membership.next({.invited_after = invitation->after}, {});
           }});
  EXPECT_EQ(again.membership.current().ranks(), (std::vector<int>{0, 1}));
  EXPECT_EQ(again.membership.current().number, first.membership.current().number);
  EXPECT_EQ(first.membership.current().first_old(), 0);
  EXPECT_EQ(first.membership.current().most_finished(), 8);
}

TEST(MembershipTest, InvitedRankIsLeftOutWhenNoMemberHasTheCall) {
  const auto store = Store::in_memory();
  Rank first(store, 0), second(store, 1), third(store, 2);
  at_once({[&] { first.membership.form(2, kLimit); }, [&] { second.membership.form(2, kLimit); }});
  // Rank 1 has finished call 8 and invites, and dies before rank 0 hears what the call said.
  third.membership.request_join();
  store.prefixed("membership").set("invited/2/1", "1 8");
  ASSERT_TRUE(third.membership.invitation());
  first.liveness.declare_lost(second.liveness.own());
  std::optional<Generation> guest;
  at_once({[&] { first.membership.next({.finished = 7}, {}); },
           [&] { guest = third.membership.next({.invited_after = 8}, {}); }});
  EXPECT_EQ(first.membership.current().ranks(), std::vector<int>{0});
  EXPECT_FALSE(guest);
}

TEST(MembershipTest, RankThatWasDeclaredLostFindsOut) {
  const auto store = Store::in_memory();
  Rank first(store, 0), second(store, 1);
  at_once({[&] { first.membership.form(2, kLimit); }, [&] { second.membership.form(2, kLimit); }});
  first.liveness.declare_lost({1, 1});
  ASSERT_TRUE(first.membership.next({}, {}));
  EXPECT_TRUE(second.membership.is_over());
  EXPECT_FALSE(second.membership.next({}, {}));
}

TEST(MembershipTest, WhatCannotBeOfARankIsRefusedAndShownWithoutItsEscapes) {
  for (const auto* list : {"99999999999 0 1 ", "2 0 1 0 0 0", "1 -3 1 0 0 0", "\x1b[2J", ""}) {
    const auto store = Store::in_memory();
    Rank first(store, 0);
    store.prefixed("membership").set("generation/0/list", list);
    EXPECT_TRUE(says(testing::error_message_of([&] { first.membership.next({}, {}); }),
                     "[elastic] the store has no list of ranks but '"));
  }
  const auto store = Store::in_memory();
  Rank first(store, 0);
  store.prefixed("membership").set("generation/0/list", "\x1b[2J");
  EXPECT_TRUE(
      says(testing::error_message_of([&] { first.membership.next({}, {}); }), "'\\x1b[2J'"));
  store.prefixed("membership").set("last", "soon");
  EXPECT_TRUE(says(testing::error_message_of([&] { first.membership.last(); }),
                   "the store has no generation but 'soon'"));
  store.prefixed("membership").set("last", "7");
  EXPECT_TRUE(says(testing::error_message_of([&] { first.membership.last(); }),
                   "[elastic] the store names generation 7 and has no list of its members"));
}

TEST(MembershipTest, MissingRankIsNamed) {
  const auto store = Store::in_memory();
  Rank first(store, 0);
  ::testing::internal::CaptureStdout();
  testing::error_message_of([&] { first.membership.form(3, 200ms, 20ms); });
  EXPECT_TRUE(
      says(::testing::internal::GetCapturedStdout(), "[init] waits for ranks 1, 2 (0 s of"));
  EXPECT_TRUE(says(testing::error_message_of([&] { first.membership.form(3, 50ms); }),
                   "[elastic] rank 0 waited 0 s, and of 3 ranks ranks 1, 2 did not arrive"));
}

}  // namespace
}  // namespace fleet::comm
