// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/offload/offload_file.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <random>
#include <semaphore>
#include <thread>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/memory/allocator/budget_allocator.h"

#include "tests/memory/offloaded_tensors.h"
#include "tests/support/launched.h"
#include "tests/support/patience.h"

namespace fleet::memory {
namespace {

using namespace offload_test;  // NOLINT
using launch::eventually;

TEST(OffloadFileTest, RestoresValuesStridesAndTypes) {
  OffloadFile file;
  const auto base = torch::randn({6, 50, 40});
  const std::vector<torch::Tensor> tensors = {
      base,
      base.permute({2, 0, 1}),
      base.to(torch::kBFloat16),
      base.to(torch::kDouble).requires_grad_(),
      torch::randn({2, 8, 16, 16}).contiguous(torch::MemoryFormat::ChannelsLast),
      torch::tensor(3),
      base > 0,
      torch::full({3}, std::nanf("7")),
  };
  for (const auto& tensor : tensors) {
    const auto ticket = on_disk(file, tensor);
    const auto back = file.read(ticket);
    EXPECT_NE(back.data_ptr(), tensor.data_ptr());
    EXPECT_TRUE(same(back, tensor.detach())) << tensor.options();
    EXPECT_TRUE(same(file.read(ticket), back)) << "a second read";
  }
  const auto slice = base.slice(2, 1, 40, 3);  // with gaps: restored without
  EXPECT_TRUE(torch::equal(file.read(on_disk(file, slice)), slice));
  EXPECT_EQ(file.read(file.write(torch::empty({0, 4}))).sizes(), torch::IntArrayRef({0, 4}));
  EXPECT_NE(
      error_message_of([&] { file.write(torch::empty({2}, torch::kMeta)); }).find("on meta cannot"),
      std::string::npos);
}

/// Random sizes and lifetimes; direct and through the page cache, tensors of both allocators.
void live_randomly(const OffloadOptions& options, unsigned seed) {
  torch::manual_seed(seed);
  std::mt19937 random(seed);
  OffloadFile file(options);
  struct Stored {
    OffloadFile::Ticket ticket;
    torch::Tensor copy;
  };
  std::vector<Stored> stored;
  for (int i = 0; i < 400; ++i) {
    const auto pick = [&]() -> Stored& { return stored[random() % stored.size()]; };
    const unsigned action = stored.empty() ? 0 : random() % 6;
    if (action <= 1 && stored.size() < 40) {
      const int64_t bytes = 1 + static_cast<int64_t>(random() % (random() % 3 ? 20'000 : 900'000));
      auto tensor = noise(bytes);
      auto copy = tensor.clone();
      stored.push_back({file.write(std::move(tensor)), copy});
    } else if (action == 2) {
      file.prefetch(pick().ticket);
    } else if (action == 3) {
      auto& one = pick();
      ASSERT_TRUE(same(file.read(one.ticket), one.copy));
    } else if (action == 4) {
      if (random() % 4 == 0) file.drain(static_cast<int64_t>(random() % kMiB));
    } else {
      std::swap(pick(), stored.back());
      stored.pop_back();
    }
  }
  for (const auto& one : stored) ASSERT_TRUE(same(file.read(one.ticket), one.copy));
  stored.clear();
  // The thread may hold one entry for a moment longer.
  EXPECT_TRUE(eventually([&] { return file.statistics().extent_bytes == 0; }));
  const auto statistics = file.statistics();
  EXPECT_EQ(statistics.file_bytes, 0);
  EXPECT_EQ(statistics.queued_bytes, 0);
  EXPECT_GT(statistics.bytes_written, kMiB);
  EXPECT_GT(statistics.bytes_read, kMiB);
}

TEST(OffloadFileTest, RandomLifetimesAreRestoredBitForBit) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    live_randomly({.buffer_bytes = 64 * 1024}, seed);
    live_randomly({.buffer_bytes = 64 * 1024, .page_cache = true}, seed);
    BudgetAllocatorScope aligned(BudgetAllocator::cpu());
    live_randomly({.buffer_bytes = 64 * 1024}, seed);
  }
}

TEST(OffloadFileTest, ThreadsShareOneFile) {
  OffloadFile file({.buffer_bytes = 256 * 1024});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::deque<std::pair<OffloadFile::Ticket, torch::Tensor>> flight;
      for (int i = 0; i < 60; ++i) {
        auto tensor = torch::full({10'000 + 1000 * t + i}, static_cast<float>(t * 1000 + i));
        auto copy = tensor.clone();
        flight.emplace_back(file.write(std::move(tensor)), copy);
        if (flight.size() < 12) continue;
        if (i % 3 == 0) file.drain(100'000);
        file.prefetch(flight[1].first);
        if (!same(file.read(flight[0].first), flight[0].second)) ++wrong;
        flight.pop_front();
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(OffloadFileTest, ThreadsReadOneTicket) {
  OffloadFile file({.buffer_bytes = 4096});
  const auto tensor = noise(100'000);
  const auto ticket = on_disk(file, tensor);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        if (i % 3 == 0) file.prefetch(ticket);
        const auto back = file.read(ticket);
        if (!back.defined() || !same(back, tensor)) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(OffloadFileTest, TensorIsFreedOnceItIsOnDiskAndReadingCountsInTheBudget) {
  auto& memory = BudgetAllocator::cpu();
  BudgetAllocatorScope counting(memory);
  auto& counter = memory.counter();
  OffloadFile file;
  const auto before = counter.live();
  const auto ticket = on_disk(file, torch::ones({4 * kMiB}));
  EXPECT_EQ(counter.live(), before);

  counter.set_budget(before + kMiB);
  file.prefetch(ticket);  // no room: no error either
  EXPECT_THROW(file.read(ticket), c10::OutOfMemoryError);
  EXPECT_EQ(counter.live(), before);
  counter.set_budget(before + 16 * kMiB);
  file.prefetch(ticket);
  EXPECT_EQ(counter.live(), before + 16 * kMiB);
  EXPECT_EQ(file.read(ticket).const_data_ptr<float>()[4 * kMiB - 1], 1.0f);
  counter.set_budget({});
  EXPECT_EQ(counter.live(), before);
}

TEST(OffloadFileTest, PrefetchHidesTheReadAndAStallIsCounted) {
  OffloadFile file;
  auto a = on_disk(file, noise(kMiB)), b = on_disk(file, noise(kMiB));
  const auto start = file.statistics();
  file.prefetch(a);
  ASSERT_TRUE(eventually([&] { return file.statistics().bytes_read == kMiB; }));
  file.read(a);
  const auto after_a = file.statistics();
  EXPECT_EQ(after_a.stall_seconds, start.stall_seconds);

  Caller caller;
  file.set_read_delay([&] {
    caller.until_asleep();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  caller.waits_now();
  file.read(b);
  const auto after_b = file.statistics();
  EXPECT_GE(after_b.stall_seconds - after_a.stall_seconds, 0.02);
  EXPECT_GE(after_b.read_seconds - after_a.read_seconds, 0.02);
}

TEST(OffloadFileTest, KnowsHowFastItIsAndWhatItTakesOfACore) {
  OffloadFile file;
  const auto speed = file.measure();
  const auto all = file.statistics();
  EXPECT_EQ(all.bytes_written, 64 * kMiB);
  EXPECT_EQ(all.bytes_read, 64 * kMiB);
  EXPECT_NEAR(speed.write, 64 * kMiB / all.write_seconds, 1e-6 * speed.write);
  EXPECT_NEAR(speed.read, 64 * kMiB / all.read_seconds, 1e-6 * speed.read);
  EXPECT_GT(speed.compute_slowdown, 0);
  EXPECT_LE(speed.compute_slowdown, 1);
  EXPECT_LE(all.cpu_seconds, all.write_seconds + all.read_seconds + 0.1);
}

TEST(OffloadFileTest, ReadOvertakesWhatIsOnlyPrefetched) {
  OffloadFile file;
  std::vector<OffloadFile::Ticket> tickets;
  for (int i = 0; i < 8; ++i) tickets.push_back(on_disk(file, noise(kMiB)));
  tickets.push_back(on_disk(file, noise(3 * kMiB)));
  // One read for each permit.
  std::counting_semaphore<> begun{0}, permits{0};
  file.set_read_delay([&] {
    begun.release();
    permits.acquire();
  });
  for (const auto& ticket : tickets) file.prefetch(ticket);
  begun.acquire();
  std::promise<Caller*> caller;
  std::thread reader([&] {
    Caller own;
    own.waits_now();
    caller.set_value(&own);
    file.read(tickets.back());
  });
  caller.get_future().get()->until_asleep();
  permits.release(2);
  for (int i = 0; i < 2; ++i) begun.acquire();
  EXPECT_EQ(file.statistics().bytes_read, (1 + 3) * kMiB) << "the first, then the last";
  permits.release(tickets.size());
  reader.join();
  tickets.pop_back();
  for (const auto& ticket : tickets) file.read(ticket);
  EXPECT_EQ(file.statistics().bytes_read, 11 * kMiB) << "nothing is read twice";
}

TEST(OffloadFileTest, ExtentsAreReusedSoTheFileStaysBounded) {
  OffloadFile file;
  std::mt19937 random(3);
  std::deque<OffloadFile::Ticket> tickets;
  int64_t written = 0;
  for (int i = 0; i < 200; ++i) {
    const auto bytes = 100'000 + static_cast<int64_t>(random() % 400'000);
    tickets.push_back(file.write(torch::zeros({bytes}, torch::kByte)));
    file.drain();
    written += bytes;
    if (tickets.size() > 8) tickets.pop_front();
  }
  struct stat status {};
  fstat(file.descriptor(), &status);
  EXPECT_GT(written, 40 * kMiB);
  EXPECT_LE(status.st_size, 9 * 512 * 1024 * 3 / 2);
  EXPECT_GE(status.st_size, file.statistics().file_bytes);
}

TEST(OffloadFileTest, TicketsMayEndInFlight) {
  OffloadFile file({.buffer_bytes = 4096});
  const auto tensor = noise(4 * kMiB);
  for (int i = 0; i < 20; ++i) {
    { const auto dropped = file.write(tensor); }  // queued or being written
    auto written = file.write(noise(100'000));
    if (i % 4 == 0) {
      file.drain();
      file.prefetch(written);  // dropped while it is read
    }
  }
  const auto kept = on_disk(file, tensor);
  EXPECT_TRUE(same(file.read(kept), tensor));
  EXPECT_EQ(file.statistics().extent_bytes, 4 * kMiB);
}

/// A disk that is in the middle of a tensor until the test waits for it.
class SlowDisk : public ::testing::Test {
 protected:
  SlowDisk() {
    file_.set_write_delay([this] {
      began_.release();
      caller_.until_asleep();
    });
  }
  ~SlowDisk() override { caller_.waits_now(); }  // for the end of the file

  OffloadFile::Ticket being_written(torch::Tensor tensor = noise(kMiB)) {
    auto ticket = file_.write(std::move(tensor));
    began_.acquire();
    return ticket;
  }

  BudgetAllocatorScope counting_{BudgetAllocator::cpu()};
  MemoryCounter& counter_ = BudgetAllocator::cpu().counter();
  std::counting_semaphore<> began_{0};
  Caller caller_;
  OffloadFile file_;
};

TEST_F(SlowDisk, ReadBeforeTheWriteIsOverReturnsTheTensor) {
  const auto large = noise(2 * kMiB), a = noise(kMiB), b = noise(kMiB), c = noise(kMiB);
  const auto in_work = being_written(large);
  const auto first = file_.write(a), second = file_.write(b), third = file_.write(c);
  EXPECT_EQ(file_.read(second).data_ptr(), b.data_ptr());
  file_.prefetch(third);
  EXPECT_EQ(file_.read(third).data_ptr(), c.data_ptr());
  EXPECT_EQ(file_.statistics().forwarded, 2);
  EXPECT_EQ(file_.statistics().queued_bytes, 3 * kMiB);
  EXPECT_EQ(file_.statistics().extent_bytes, 2 * kMiB) << "the one that is being written";
  caller_.waits_now();
  EXPECT_EQ(file_.read(in_work).data_ptr(), large.data_ptr());
  EXPECT_EQ(file_.statistics().forwarded, 3);
  file_.drain();
  EXPECT_EQ(file_.statistics().bytes_written, kMiB);
  EXPECT_EQ(file_.statistics().extent_bytes, kMiB);
  EXPECT_TRUE(same(file_.read(first), a));
  EXPECT_EQ(file_.read(second).data_ptr(), b.data_ptr()) << "a second read";
}

TEST_F(SlowDisk, MemoryIsFreeOnceATicketHasEnded) {
  const auto before = counter_.live();
  auto ticket = being_written();
  EXPECT_EQ(counter_.live(), before + kMiB);
  caller_.waits_now();
  ticket = {};
  EXPECT_EQ(counter_.live(), before);
  EXPECT_GT(file_.statistics().stall_seconds, 0);
}

TEST_F(SlowDisk, MemoryIsFreeOnceAForwardedTensorIs) {
  const auto before = counter_.live();
  auto ticket = being_written();
  caller_.waits_now();
  auto back = file_.read(ticket);
  ticket = {};
  EXPECT_EQ(counter_.live(), before + kMiB);
  back.reset();
  EXPECT_EQ(counter_.live(), before);
  EXPECT_GT(file_.statistics().stall_seconds, 0);
}

TEST_F(SlowDisk, AnAllocationThatDoesNotFitWaitsForQueuedWrites) {
  const auto ticket = being_written();
  counter_.set_budget(counter_.live() + kMiB / 2);
  torch::Tensor fits;
  caller_.waits_now();
  EXPECT_NO_THROW(fits = torch::empty({kMiB}, torch::kByte));
  EXPECT_GT(file_.statistics().stall_seconds, 0);
  // Nothing is queued any more.
  EXPECT_THROW(torch::empty({kMiB}, torch::kByte), c10::OutOfMemoryError);
  counter_.set_budget(std::nullopt);
}

}  // namespace
}  // namespace fleet::memory
