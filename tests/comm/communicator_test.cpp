// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/communicator.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <functional>
#include <latch>
#include <thread>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/support/launched.h"
#include "tests/support/printed_so_far.h"
#include "tests/support/says.h"
#include "tests/support/thread_ranks.h"

namespace fleet::comm {
namespace {

using testing::error_message_of;
using testing::run_ranks;

class CommunicatorTest : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorTest, ReducesEveryTypeByEveryOperation) {
  const int size = GetParam();
  run_ranks(size, [&](const testing::Comm& comm) {
    const double n = size;
    for (const auto dtype :
         {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kLong}) {
      const auto own = torch::arange(1, 6).to(dtype) + comm->rank();
      auto sum = own.clone();
      comm->all_reduce(sum, ReduceOp::kSum, "a sum");
      EXPECT_EQ(sum[2].item<double>(), 3 * n + n * (n - 1) / 2) << dtype;
      auto max = own.clone();
      comm->all_reduce(max, ReduceOp::kMax, "a maximum");
      EXPECT_EQ(max[0].item<double>(), n) << dtype;
      if (dtype == torch::kLong) continue;
      auto average = own.clone();
      comm->all_reduce(average, ReduceOp::kAvg, "an average");
      EXPECT_EQ(average[0].item<double>(), 1 + (n - 1) / 2) << dtype;
    }
  });
}

TEST_P(CommunicatorTest, BroadcastsGathersAndPassesBarriers) {
  run_ranks(GetParam(), [](const testing::Comm& comm) {
    const int root = comm->size() - 1;
    auto word = torch::full({3}, comm->rank(), torch::kLong);
    comm->broadcast(word, root, "a word");
    EXPECT_EQ(word[1].item<int64_t>(), root);
    const auto all =
        comm->all_gather(torch::full({2, 2}, static_cast<float>(comm->rank())), "words");
    ASSERT_EQ(all.size(0), comm->size());
    for (int rank = 0; rank < comm->size(); ++rank) EXPECT_EQ(all[rank][1][1].item<float>(), rank);
    comm->barrier("the end");
  });
}

TEST_P(CommunicatorTest, RunsSeveralAtOnceInOrder) {
  run_ranks(GetParam(), [](const testing::Comm& comm) {
    std::vector<torch::Tensor> tensors;
    std::vector<Work> pending;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(torch::full({1000 * (i + 1)}, static_cast<float>(i)));
      pending.push_back(comm->all_reduce_async(tensors.back(), ReduceOp::kSum, "one of many"));
    }
    for (auto& item : pending) item.wait();
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(tensors[static_cast<size_t>(i)][0].item<float>(),
                static_cast<float>(i * comm->size()));
      EXPECT_TRUE(pending[static_cast<size_t>(i)].done());
    }
  });
}

TEST_P(CommunicatorTest, DuplicatesOfOneNameAreGroupsOfTheirOwn) {
  run_ranks(GetParam(), [](const testing::Comm& comm) {
    const auto first = comm->duplicate("twice");
    const auto second = comm->duplicate("twice");
    auto sum = torch::ones({1});
    second->all_reduce(sum, ReduceOp::kSum, "the second");
    first->all_reduce(sum, ReduceOp::kSum, "the first");
    EXPECT_EQ(sum.item<float>(), static_cast<float>(comm->size() * comm->size()));
  });
}

TEST_P(CommunicatorTest, ADuplicateDoesNotMixWithItsOriginal) {
  run_ranks(GetParam(), [](const testing::Comm& comm) {
    const auto other = comm->duplicate("other");
    auto a = torch::ones({1000});
    auto b = torch::ones({1000});
    // Ranks start the two groups' calls in different orders.
    if (comm->rank() % 2 == 0) {
      auto first = comm->all_reduce_async(a, ReduceOp::kSum, "a");
      auto second = other->all_reduce_async(b, ReduceOp::kMax, "b");
      first.wait();
      second.wait();
    } else {
      auto second = other->all_reduce_async(b, ReduceOp::kMax, "b");
      auto first = comm->all_reduce_async(a, ReduceOp::kSum, "a");
      second.wait();
      first.wait();
    }
    EXPECT_EQ(a[0].item<float>(), static_cast<float>(comm->size()));
    EXPECT_EQ(b[0].item<float>(), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorTest, ::testing::Values(1, 2, 4));

TEST(CommunicatorTest, SaysWhatCannotBeSent) {
  Communicator comm;
  EXPECT_NE(error_message_of([&] {
              comm.all_reduce(torch::ones({4, 4}).t().narrow(0, 0, 2), ReduceOp::kSum, "x");
            }).find("all_reduce: the tensor is not contiguous"),
            std::string::npos);
  EXPECT_NE(error_message_of([&] {
              comm.broadcast(torch::ones({2}, torch::kBool), 0, "x");
            }).find("broadcast: Bool tensors cannot be sent"),
            std::string::npos);
  EXPECT_NE(error_message_of([&] {
              comm.all_reduce(torch::ones({2}, torch::kLong), ReduceOp::kAvg, "x");
            }).find("the average of int64 would be truncated"),
            std::string::npos);
  EXPECT_NE(error_message_of([&] {
              comm.broadcast(torch::ones({2}), 3, "x");
            }).find("there is no rank 3 among 1"),
            std::string::npos);
  EXPECT_NE(error_message_of([&] {
              comm.all_reduce(torch::Tensor(), ReduceOp::kSum, "x");
            }).find("undefined"),
            std::string::npos);
}

constexpr auto kSoon = std::chrono::milliseconds(300);  // for calls that cannot succeed

/// What the ranks but the last one say when a call fails because the last one never makes it. All
/// ranks run `before` first, which tells them that rank and the others apart.
std::vector<std::string> errors_without_the_last(
    int size, const std::function<void(const testing::Comm&)>& before) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::latch others_have_started(size - 1), others_have_failed(size - 1);
  run_ranks(size, [&](const testing::Comm& comm) {
    comm->barrier("all are here");
    before(comm);
    if (comm->rank() == size - 1) return others_have_failed.wait();
    const auto tensor = torch::ones({10});
    auto pending = comm->with_timeout(kSoon)->all_reduce_async(tensor, ReduceOp::kSum,
                                                               "gradient bucket 2 of 5");
    others_have_started.arrive_and_wait();  // or one may be missing for another
    errors[static_cast<size_t>(comm->rank())] = error_message_of([&] { pending.wait(); });
    others_have_failed.count_down();
    others_have_failed.wait();  // a rank that leaves is not alive for the others
  });
  return errors;
}

TEST(CommunicatorTest, NamesTheMissingRankAndItsCall) {
  const auto errors = errors_without_the_last(2, [](const testing::Comm&) {});
  EXPECT_TRUE(says(
      errors[0], "rank 0: all_reduce of gradient bucket 2 of 5 (10 x Float", "(since ", "rank 1 (",
      "has not reached this call: it is at its call 2 ('barrier (all are here)'), this is "
      "call 3"));
}

// A thread that writes snapshots calls when it has something to write, not when training calls:
// rank 0 is ahead of rank 1 there, and rank 2, which does not come, of both.
TEST(CommunicatorTest, CallsOfAnotherGroupOnAnotherThreadDoNotCountInThisOne) {
  std::array<testing::Comm, 3> writers;
  std::array<std::vector<Work>, 3> calls;
  const auto errors = errors_without_the_last(3, [&](const testing::Comm& comm) {
    const auto rank = static_cast<size_t>(comm->rank());
    writers[rank] = comm->duplicate("writer");
    std::thread([&, ahead = std::array{3, 0, 6}[rank]] {
      for (int call = 0; call < ahead; ++call) {
        calls[rank].push_back(
            writers[rank]->all_reduce_async(torch::ones({2}), ReduceOp::kSum, "a file's hash"));
      }
    }).join();
  });
  for (const int rank : {0, 1}) {
    const auto& text = errors[static_cast<size_t>(rank)];
    EXPECT_TRUE(says(text, "rank 2 (", "has not reached this call: it is at its call 2 ('barrier",
                     "its latest call is 'all_reduce of a file's hash (2 x Float"));
    EXPECT_EQ(text.find(rank == 0 ? "rank 1 (" : "rank 0 ("), text.npos) << text;
  }
}

TEST(CommunicatorTest, NamesEachRanksCallWhenTheyDiffer) {
  std::array<std::string, 2> errors;
  std::barrier both_have_started(2);
  std::barrier both_have_failed(2);
  run_ranks(2, [&](const testing::Comm& comm) {
    const auto soon = comm->with_timeout(kSoon);
    const auto numbers = torch::ones({1000});
    // One has left its loop, and the other has not.
    auto pending = comm->rank() == 0 ? soon->all_reduce_async(numbers, ReduceOp::kSum, "gradients")
                                     : soon->broadcast_async(numbers, 0, "the best weights");
    both_have_started.arrive_and_wait();
    errors[static_cast<size_t>(comm->rank())] = error_message_of([&] { pending.wait(); });
    both_have_failed.arrive_and_wait();
  });
  EXPECT_TRUE(says(errors[0], "rank 1 (",
                   "is at another call: its call 2 is 'broadcast of the best weights from rank 0",
                   "and here it is 'all_reduce of gradients (1000 x Float"));
  EXPECT_TRUE(says(errors[1], "rank 0 (", "its call 2 is 'all_reduce of gradients (1000 x Float",
                   "and here it is 'broadcast of the best weights from rank 0"));
}

// Through shared memory, and through sockets.
TEST(CommunicatorTest, RankThatWaitsSaysForWhom) {
  for (const int64_t numbers : {10, 100'000}) {
    ::testing::internal::CaptureStdout();
    const auto has_said = [] {
      return testing::printed_so_far().find("[comm] ") != std::string::npos;
    };
    run_ranks(2,
              [&](const testing::Comm& comm) {
                comm->barrier("all are here");
                const auto tensor = torch::ones({numbers});
                if (comm->rank() == 1) {
                  EXPECT_TRUE(launch::eventually(has_said));
                }
                comm->all_reduce(tensor, ReduceOp::kSum, "gradient bucket 2 of 5");
                EXPECT_EQ(tensor[0].item<float>(), 2) << "a notice ends no call";
              },
              {.timeout = std::chrono::milliseconds(60'000),
               .notice_every = std::chrono::milliseconds(100)});
    EXPECT_TRUE(
        says(::testing::internal::GetCapturedStdout(),
             format("[comm] waits for all_reduce of gradient bucket 2 of 5 ({} x Float, ", numbers),
             "): rank 1 (", "has not reached this call", " s of 60 s)\n"));
  }
}

TEST(PeerWatchTest, StoppedRankIsNamedWhileItIsWaitedFor) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  int status = 0;
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  auto store = Store::in_memory();
  PeerWatch watch(store, 0, 2, "127.0.0.1");
  const auto own = store.try_get("watch/peer/0").value();
  store.set("watch/peer/1", format("{}{}", own.substr(0, own.rfind('\n') + 1), child));
  watch.gather_identities();
  const CallId call{"world", watch.begin_call("world", "barrier"), "barrier"};
  EXPECT_TRUE(says(watch.waits_for(call), "rank 1 (",
                   format(", pid {}) is stopped (SIGSTOP or a debugger)", child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(says(watch.waits_for(call), format(", pid {}) has ended", child)));
}

TEST(CommunicatorTest, KnowsItsBackends) {
  auto store = Store::in_memory();
  EXPECT_NE(error_message_of([&] {
              Communicator comm(store, 0, 2, {.backend = "mpi"});
            }).find("there is no backend 'mpi'"),
            std::string::npos);
}

}  // namespace
}  // namespace fleet::comm
