// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/allocator/budget_allocator.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <thread>

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "fleet/core/error.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/memory/allocator/budget_exceeded.h"
#include "fleet/memory/allocator/last_resort.h"

namespace fleet::memory {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // which faults pages of its own
#else
constexpr bool kSanitized = false;
#endif

thread_local const char* op_name = "test";

/// The error of an allocation over the budget; fails the test when there is none.
template <typename Body>
std::string out_of_memory(Body&& body) {
  try {
    body();
  } catch (const c10::OutOfMemoryError& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "no c10::OutOfMemoryError";
  return "";
}

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// On request, which the block cache makes.
bool has_huge_pages() {
  std::string offered;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), offered);
  return !offered.empty() && offered.find("[never]") == std::string::npos;
}

/// At least so many in a step on fresh memory: else the tests below count nothing.
int64_t least_first_faults() { return has_huge_pages() ? 100 : 10'000; }

/// Resident bytes that no file backs.
int64_t anonymous_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0;
  file >> size >> resident >> shared;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

torch::Tensor bytes(int64_t count) { return torch::empty({count}, torch::kByte); }

class BudgetAllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    torch::set_num_threads(1);
    memory.switch_on();
    baseline = counter.live();
    blocks = counter.live_blocks();
    counter.reset_peaks();
    counter.take_window_peak();
  }
  void TearDown() override {
    EXPECT_EQ(counter.live(), baseline) << "a test leaked";
    EXPECT_EQ(counter.live_blocks(), blocks);
    counter.set_budget({});
    set_tag_source(nullptr);
    memory.switch_off();
    memory.trim();
    torch::set_num_threads(threads);
  }

  int64_t live() const { return counter.live() - baseline; }
  int64_t cached() const { return memory.reserved() - counter.live(); }

  BudgetAllocator& memory = BudgetAllocator::cpu();
  MemoryCounter& counter = memory.counter();
  int64_t baseline = 0;
  int64_t blocks = 0;
  int threads = torch::get_num_threads();
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width = 256, int64_t layers = 4) {
    torch::manual_seed(1);
    for (int64_t i = 0; i < layers; ++i) {
      net->push_back(torch::nn::Linear(width, width));
      net->push_back(torch::nn::GELU());
    }
    register_module("net", net);
  }
  torch::Tensor forward(const torch::Tensor& x) { return net->forward(x).square().mean(); }
  void step(const torch::Tensor& x) {
    torch::Tensor loss;
    {
      StepPhaseScope phase(StepPhase::kForward);
      loss = forward(x);
    }
    StepPhaseScope phase(StepPhase::kBackward);
    loss.backward();
  }
  std::vector<torch::Tensor> gradients() const {
    std::vector<torch::Tensor> all;
    for (const auto& parameter : parameters()) all.push_back(parameter.grad().clone());
    return all;
  }
  torch::nn::Sequential net;
};
TORCH_MODULE(Net);

TEST_F(BudgetAllocatorTest, CountsEveryTensorToTheByte) {
  auto tensor = torch::empty({1000});
  EXPECT_EQ(live(), 4032);  // 4000, rounded up to 64
  EXPECT_EQ(counter.live_blocks() - blocks, 1);
  auto view = tensor.view({10, 100}).select(0, 3);
  EXPECT_EQ(live(), 4032);
  tensor.resize_({2000});  // moves: both exist for a moment
  EXPECT_EQ(live(), 8000);
  EXPECT_EQ(counter.peak() - baseline, 4032 + 8000);
  tensor.resize_({10});
  EXPECT_EQ(live(), 8000);
  auto half = torch::zeros({3 * kMiB}, torch::kBFloat16);
  EXPECT_EQ(live(), 8000 + 6 * kMiB);
  auto nothing = torch::empty({0, 5});
  EXPECT_EQ(counter.live_blocks() - blocks, 2);
  half.reset();
  EXPECT_EQ(live(), 8000);
  tensor.reset();
  EXPECT_EQ(live(), 8000);  // the view holds it
  view.reset();
  EXPECT_EQ(live(), 0);
}

TEST_F(BudgetAllocatorTest, KeepsPeaksByPhaseAndByWindow) {
  auto kept = bytes(kMiB);
  { bytes(8 * kMiB); }
  {
    StepPhaseScope phase(StepPhase::kForward);
    bytes(2 * kMiB);
    StepPhaseScope inner(StepPhase::kUpdate);
  }
  {
    StepPhaseScope phase(StepPhase::kBackward);
    bytes(4 * kMiB);
  }
  EXPECT_EQ(counter.peak() - baseline, 9 * kMiB);
  EXPECT_EQ(counter.peak(StepPhase::kOther) - baseline, 9 * kMiB);
  EXPECT_EQ(counter.peak(StepPhase::kForward) - baseline, 3 * kMiB);
  EXPECT_EQ(counter.peak(StepPhase::kBackward) - baseline, 5 * kMiB);
  EXPECT_EQ(counter.peak(StepPhase::kUpdate) - baseline, kMiB);  // what was live when it began
  counter.reset_peaks();
  EXPECT_EQ(counter.peak() - baseline, kMiB);
  EXPECT_EQ(counter.peak(StepPhase::kForward), 0);

  EXPECT_EQ(counter.take_window_peak() - baseline, 9 * kMiB);
  EXPECT_EQ(counter.take_window_peak() - baseline, kMiB);
  { bytes(3 * kMiB); }
  EXPECT_EQ(counter.take_window_peak() - baseline, 4 * kMiB);
}

TEST_F(BudgetAllocatorTest, ErrorNamesTheOpTheBudgetAndTheFiveLargestTags) {
  set_tag_source([] { return op_name; });
  std::vector<torch::Tensor> kept;
  const char* names[] = {"conv2d", "relu", "linear", "gelu", "softmax", "dropout"};
  for (int64_t i = 0; i < 6; ++i) {
    op_name = names[i];
    kept.push_back(bytes((i + 1) * kMiB));
  }
  op_name = "relu";
  kept.push_back(bytes(6 * kMiB));
  counter.set_budget(baseline + 30 * kMiB);
  op_name = "addmm";
  const auto text = out_of_memory([] { bytes(4 * kMiB); });
  const auto missing = byte_size_text(kMiB);
  EXPECT_NE(text.find("[memory] addmm asks for 4.00 MiB of CPU memory, but " +
                      byte_size_text(counter.live()) + " are live and the budget is " +
                      byte_size_text(baseline + 30 * kMiB) + ", so " + missing + " are missing"),
            std::string::npos)
      << text;
  const auto table = text.substr(text.find("largest allocation tags:"));
  EXPECT_EQ(table.substr(0, table.find("\n  fix")),
            "largest allocation tags:\n        8.00 MiB  relu (2 blocks)\n"
            "        6.00 MiB  dropout (1 block)\n        5.00 MiB  softmax (1 block)\n"
            "        4.00 MiB  gelu (1 block)\n        3.00 MiB  linear (1 block)");
  EXPECT_NO_THROW(bytes(3 * kMiB));
  EXPECT_EQ(counter.largest_tags(1)[0].bytes, 8 * kMiB);
}

TEST_F(BudgetAllocatorTest, ChargesOutsideBytesAgainstTheBudget) {
  counter.set_budget(baseline + 10 * kMiB);
  counter.charge(7 * kMiB, "parameter arena");
  EXPECT_EQ(live(), 7 * kMiB);
  const auto text = out_of_memory([] { bytes(4 * kMiB); });
  EXPECT_NE(text.find("7.00 MiB  parameter arena (1 block)"), std::string::npos) << text;
  EXPECT_NE(out_of_memory([&] { counter.charge(4 * kMiB, "more"); }), "");
  counter.release(7 * kMiB, "parameter arena");
  EXPECT_NO_THROW(bytes(4 * kMiB));
}

TEST_F(BudgetAllocatorTest, OfSeveralBudgetsTheSmallestApplies) {
  auto first = std::make_unique<BudgetScope>(counter, baseline + 10 * kMiB);
  auto second = std::make_unique<BudgetScope>(counter, baseline + 4 * kMiB);
  EXPECT_EQ(counter.budget(), baseline + 4 * kMiB);
  first.reset();  // in any order
  EXPECT_EQ(counter.budget(), baseline + 4 * kMiB);
  EXPECT_NE(out_of_memory([] { bytes(5 * kMiB); }), "");
  second->set(baseline + 6 * kMiB);
  EXPECT_NO_THROW(bytes(5 * kMiB));
  counter.set_budget(baseline + kMiB);
  EXPECT_NE(out_of_memory([] { bytes(5 * kMiB); }), "");
  counter.set_budget({});
  second.reset();
  EXPECT_FALSE(counter.budget().has_value());
}

TEST_F(BudgetAllocatorTest, BookkeepingIsCountedAndNeverThrows) {
  counter.set_budget(baseline + kMiB);
  const auto kept = bytes(kMiB);
  EXPECT_NE(out_of_memory([] { bytes(64); }), "");
  {
    const BudgetExemptScope bookkeeping;
    const auto more = bytes(8192);
    EXPECT_EQ(live(), kMiB + 8192);
  }
  EXPECT_NE(out_of_memory([] { bytes(64); }), "");
}

TEST_F(BudgetAllocatorTest, StepThatRunsOutUnwindsToTheBaselineAndTheNextIsBitEqual) {
  Net net;
  const auto x = torch::randn({512, 256});
  net->step(x);
  const auto expected = net->gradients();
  net->zero_grad();
  const auto before = counter.live();
  counter.reset_peaks();
  net->step(x);
  const auto forward = counter.peak(StepPhase::kForward),
             backward = counter.peak(StepPhase::kBackward);
  ASSERT_GT(backward, forward);
  net->zero_grad();
  ASSERT_EQ(counter.live(), before);

  for (const int64_t budget : {forward - 64, backward - 64, (forward + backward) / 2}) {
    counter.set_budget(budget);
    counter.reset_peaks();
    const auto text = out_of_memory([&] { net->step(x); });
    if (budget > forward) {
      EXPECT_GT(counter.peak(StepPhase::kBackward), 0) << "not out of backward";
      // The tag is the autograd node that ran.
      EXPECT_NE(text.find("Backward0 asks for "), std::string::npos) << text;
    } else {
      EXPECT_NE(text.find("the program asks for"), std::string::npos) << text;
    }
    net->zero_grad();
    EXPECT_EQ(counter.live(), before);
    counter.set_budget(backward);
    net->step(x);
    const auto now = net->gradients();
    for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(torch::equal(now[i], expected[i]));
    net->zero_grad();
  }
}

TEST_F(BudgetAllocatorTest, SecondEqualStepFaultsNoPages) {
  if (kSanitized) GTEST_SKIP();
  const auto step = [] {
    std::vector<torch::Tensor> kept;
    for (int64_t i = 0; i < 20; ++i) {
      kept.push_back(bytes((1 + i % 3) * kMiB + 64));
      kept.back().fill_(1);
      bytes(3 * kMiB).fill_(2);  // a temporary
    }
    while (!kept.empty()) {
      kept.pop_back();
      bytes(3 * kMiB).fill_(3);
    }
  };
  auto before = page_faults();
  step();
  const auto first = page_faults() - before;
  before = page_faults();
  step();
  const auto second = page_faults() - before;
  EXPECT_GT(first, least_first_faults());
  EXPECT_LE(second, 3);  // the program's own
}

TEST_F(BudgetAllocatorTest, LargeBlocksAreMadeOfHugePagesWhereTheSystemHasThem) {
  if (kSanitized) GTEST_SKIP();
  if (!has_huge_pages()) GTEST_SKIP() << "no huge pages on this machine";
  memory.trim();
  const auto before = page_faults();
  const auto block = bytes(64 * kMiB + 4096);
  block.fill_(1);
  // Some may not be had when memory is in many pieces.
  EXPECT_LT(page_faults() - before, 64 * kMiB / 4096 / 4);
}

TEST_F(BudgetAllocatorTest, StepOfANetKeepsItsPages) {
  if (kSanitized) GTEST_SKIP();
  Net net(512, 6);
  const auto x = torch::randn({2048, 512});
  auto before = page_faults();
  net->step(x);
  const auto first = page_faults() - before;
  net->step(x);
  before = page_faults();
  net->step(x);
  const auto later = page_faults() - before;
  EXPECT_GT(first, least_first_faults());
  EXPECT_LT(later, std::min<int64_t>(first / 10, 100));
  net->zero_grad();
}

TEST_F(BudgetAllocatorTest, SizesThatChangeEveryStepReusePagesWithinThePeak) {
  std::mt19937 random(5);
  counter.set_budget({});
  const auto step = [&] {
    std::vector<std::pair<torch::Tensor, uint8_t>> kept;
    int64_t total = 0;
    while (total < 60 * kMiB) {
      const int64_t size = 150'000 + static_cast<int64_t>(random() % 4'000'000);
      total += size;
      kept.emplace_back(bytes(size), static_cast<uint8_t>(random()));
      kept.back().first.fill_(kept.back().second);
      EXPECT_LE(memory.reserved(), counter.peak() + counter.live_blocks() * 4096);
    }
    // Pages moved together must still be one's own.
    for (const auto& [tensor, value] : kept)
      EXPECT_TRUE(tensor.eq(static_cast<int>(value)).all().item<bool>());
  };
  auto before = page_faults();
  step();
  const auto first = page_faults() - before;
  for (int i = 0; i < 4; ++i) step();
  before = page_faults();
  for (int i = 0; i < 4; ++i) step();
  EXPECT_LT(page_faults() - before, 4 * first / 10);
  EXPECT_GT(cached(), 50 * kMiB);
  memory.trim();
  EXPECT_EQ(cached(), 0);
}

// As an op of a library throws it that is built for LibTorch's stable ABI.
TEST_F(BudgetAllocatorTest, ABudgetsErrorIsKnownByItsText) {
  counter.set_budget(counter.live() + kMiB);
  const auto text = out_of_memory([] { bytes(2 * kMiB); });
  EXPECT_TRUE(tells_of_exceeded_budget(text)) << text;
  EXPECT_THROW(
      with_budget_errors([&] { throw std::runtime_error(text + " (originally from ...)"); }),
      BudgetExceeded);
  EXPECT_THROW(with_budget_errors([] { bytes(2 * kMiB); }), BudgetExceeded);
  // One that has a class of its own, or tells of something else, stays what it is.
  EXPECT_THROW(with_budget_errors([&] { throw Error("memory", text, ""); }), Error);
  EXPECT_THROW(with_budget_errors([] { throw std::runtime_error("a budget"); }),
               std::runtime_error);
}

// What was cut from one block becomes one block again where it is asked for, and no page moves.
TEST_F(BudgetAllocatorTest, NeighboursAreJoinedBeforePagesAreMoved) {
  memory.trim();
  const void* first = nullptr;
  {
    const auto whole = bytes(8 * kMiB);
    first = whole.data_ptr();
  }
  {
    std::vector<torch::Tensor> parts;
    for (int i = 1; i <= 8; ++i) parts.push_back(bytes(kMiB).fill_(i));
  }
  const auto whole = bytes(8 * kMiB);
  EXPECT_EQ(whole.data_ptr(), first);
  EXPECT_EQ(cached(), 0);
}

// Small ones too: their pages would have to be mapped, faulted in and cleared again.
TEST_F(BudgetAllocatorTest, RestsServeSmallRequests) {
  memory.trim();
  { bytes(kMiB + 40 * kKiB); }
  const auto most = bytes(kMiB);
  EXPECT_EQ(cached(), 40 * kKiB);
  const auto rest = bytes(40 * kKiB);
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(static_cast<const char*>(rest.data_ptr()),
            static_cast<const char*>(most.data_ptr()) + kMiB);
}

// The bound is one of what tensors asked for, also where their last pages are nearly empty, and
// where more was live before the cache was trimmed.
TEST_F(BudgetAllocatorTest, TheCacheIsBoundByWhatWasAskedForNotByItsPages) {
  { bytes(8 * kMiB); }
  memory.trim();
  constexpr int64_t kJustAboveAPage = 10 * 4096 + 64;
  counter.reset_peaks();
  {
    std::vector<torch::Tensor> many;
    for (int i = 0; i < 100; ++i) many.push_back(bytes(kJustAboveAPage));
  }
  EXPECT_EQ(cached(), 100 * 11 * 4096);
  const auto one = bytes(kJustAboveAPage + 4096);  // of no size that is cached
  EXPECT_LE(memory.reserved(), counter.peak());
  EXPECT_GT(memory.reserved(), counter.peak() - 2 * 4096);
}

torch::Tensor g_evictable;

// What is evicted for a block gives it its pages.
TEST_F(BudgetAllocatorTest, PagesOfEvictedValuesAreUsedAtOnce) {
  if (kSanitized) GTEST_SKIP();
  memory.trim();
  g_evictable = bytes(kMiB).fill_(1);
  counter.set_budget(counter.live());
  counter.set_evictor([](int64_t) -> int64_t {
    if (!g_evictable.defined()) return 0;
    g_evictable = torch::Tensor();
    return kMiB;
  });
  const auto before = page_faults();
  const auto next = bytes(kMiB).fill_(2);
  const auto faults = page_faults() - before;
  counter.set_evictor(nullptr);
  EXPECT_FALSE(g_evictable.defined());
  EXPECT_LT(faults, kMiB / 4096 / 4);
}

TEST_F(BudgetAllocatorTest, ALastResortIsAskedOnItsThreadBeforeAnAllocationFails) {
  counter.set_budget(baseline + kMiB);
  int asked = 0;
  {
    const LastResortScope last([&] {
      ++asked;
      counter.set_budget(baseline + 4 * kMiB);
      return asked == 1;
    });
    std::thread([] { out_of_memory([] { bytes(2 * kMiB); }); }).join();
    EXPECT_EQ(asked, 0);
    const auto within = bytes(kMiB);
    EXPECT_EQ(asked, 0);
    const auto beyond = bytes(2 * kMiB);
    EXPECT_EQ(asked, 1);
    out_of_memory([] { bytes(2 * kMiB); });
    EXPECT_EQ(asked, 2);
  }
  out_of_memory([] { bytes(8 * kMiB); });
  EXPECT_EQ(asked, 2);
}

TEST_F(BudgetAllocatorTest, CacheFollowsAPeakThatFalls) {
  { bytes(64 * kMiB).fill_(1); }
  EXPECT_EQ(cached(), 64 * kMiB);
  for (int i = 0; i < 1500; ++i) {
    auto a = bytes(3 * kMiB + i % 9 * 4096);
    auto b = bytes(kMiB);
  }
  EXPECT_LE(cached(), 5 * kMiB);
  EXPECT_GT(cached(), 3 * kMiB);
}

TEST_F(BudgetAllocatorTest, LiveAndCachedStayWithinTheBudget) {
  const int64_t budget = baseline + 40 * kMiB;
  counter.set_budget(budget);
  std::mt19937 random(11);
  std::vector<torch::Tensor> kept;
  int thrown = 0;
  for (int i = 0; i < 3000; ++i) {
    if (!kept.empty() && random() % 2 == 0) {
      std::swap(kept[random() % kept.size()], kept.back());
      kept.pop_back();
    } else {
      const int64_t size =
          1 + static_cast<int64_t>(random() % (random() % 4 == 0 ? 9000 : 6000000));
      const int64_t rounded = (size + 63) / 64 * 64;
      const bool fits = counter.live() + rounded <= budget;
      try {
        kept.push_back(bytes(size));
        EXPECT_TRUE(fits);
      } catch (const c10::OutOfMemoryError&) {
        EXPECT_FALSE(fits) << "threw although it fits without the cache";
        ++thrown;
      }
    }
    ASSERT_LE(memory.reserved(), budget);
  }
  EXPECT_GT(thrown, 10);
  EXPECT_GT(cached(), 0);
  counter.set_budget(counter.live());
  EXPECT_EQ(cached(), 0);
}

TEST_F(BudgetAllocatorTest, CachedPagesMakeRoomForWhatIsNotTakenFromThem) {
  { bytes(8 * kMiB); }
  ASSERT_EQ(cached(), 8 * kMiB);
  const int64_t budget = memory.reserved();
  counter.set_budget(budget);
  const auto small = bytes(5000);
  EXPECT_LE(memory.reserved(), budget);
  EXPECT_GE(cached(), 7 * kMiB);
  counter.charge(3 * kMiB, "arena");
  EXPECT_LE(memory.reserved(), budget);
  EXPECT_GE(cached(), 4 * kMiB);
  counter.release(3 * kMiB, "arena");
}

TEST_F(BudgetAllocatorTest, BlocksCrossTheSwitchBothWays) {
  auto small = torch::full({10}, 3.0f), big = torch::full({kMiB}, 4.0f);
  const auto mine = live();
  EXPECT_GT(mine, 4 * kMiB);
  memory.switch_off();
  EXPECT_FALSE(memory.is_on());
  auto uncounted_small = torch::full({10}, 5.0f), uncounted_big = torch::full({kMiB}, 6.0f);
  EXPECT_EQ(live(), mine);
  EXPECT_EQ(big.sum().item<float>(), 4.0f * kMiB);
  small.reset();
  big.reset();
  EXPECT_EQ(live(), 0);
  memory.switch_on();
  EXPECT_EQ(uncounted_big.sum().item<float>(), 6.0f * kMiB);
  uncounted_small.reset();
  uncounted_big.reset();
  EXPECT_EQ(live(), 0);
}

TEST_F(BudgetAllocatorTest, RawMemoryOfEitherAllocatorIsFreedByWhicheverIsInstalled) {
  for (const size_t size : {100u, 5'000'000u}) {
    memory.switch_off();
    void* foreign = c10::GetCPUAllocator()->raw_allocate(size);
    memory.switch_on();
    void* mine = c10::GetCPUAllocator()->raw_allocate(size);
    EXPECT_GE(live(), static_cast<int64_t>(size));
    c10::GetCPUAllocator()->raw_deallocate(foreign);
    EXPECT_GE(live(), static_cast<int64_t>(size));
    memory.switch_off();
    c10::GetCPUAllocator()->raw_deallocate(mine);
    EXPECT_EQ(live(), 0);
    memory.switch_on();
  }
}

TEST_F(BudgetAllocatorTest, ThreadsShareItWithoutLosingAByte) {
  counter.set_budget(baseline + 100 * kMiB);
  std::atomic<int> wrong{0}, thrown{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<std::pair<torch::Tensor, int>> kept;
      for (int i = 0; i < 1500; ++i) {
        if (kept.size() > 10 || (!kept.empty() && random() % 2 == 0)) {
          std::swap(kept[random() % kept.size()], kept.back());
          const auto& [tensor, value] = kept.back();
          const auto* data = tensor.const_data_ptr<uint8_t>();
          for (int64_t at = 0; at < tensor.numel(); at += 997)
            if (data[at] != value) ++wrong;
          kept.pop_back();
          continue;
        }
        try {
          const int value = static_cast<int>(random() % 256);
          auto tensor = bytes(1 + static_cast<int64_t>(random() % (i % 3 ? 5'000 : 9'000'000)));
          std::memset(tensor.mutable_data_ptr(), value, static_cast<size_t>(tensor.numel()));
          kept.emplace_back(std::move(tensor), value);
        } catch (const c10::OutOfMemoryError&) {
          ++thrown;
        }
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(live(), 0);
  EXPECT_LE(counter.peak(), baseline + 100 * kMiB);
  EXPECT_GT(counter.peak(), baseline + 40 * kMiB);
}

TEST_F(BudgetAllocatorTest, ProcessHoldsWhatIsCounted) {
  torch::nn::Sequential net(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 32, 3).padding(1)), torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 32, 3).padding(1)), torch::nn::GELU());
  torch::nn::Linear head(32, 64);
  const auto x = torch::randn({16, 3, 96, 96});
  const auto step = [&] {
    const auto y = net->forward(x).permute({0, 2, 3, 1});
    const auto loss = torch::gelu(head(y)).square().mean();
    const auto resident = anonymous_bytes();
    const auto reserved = memory.reserved(), held = counter.live();
    loss.backward();
    return std::array<int64_t, 3>{resident, reserved, held};
  };
  memory.trim();
  step();
  net->zero_grad();
  memory.trim();
  const auto empty = anonymous_bytes() - memory.reserved();  // libraries and code
  for (int i = 0; i < 3; ++i) {
    const auto [resident, reserved, held] = step();
    EXPECT_GT(held, 140 * kMiB);
    EXPECT_NEAR(static_cast<double>(resident - empty), static_cast<double>(reserved),
                0.08 * static_cast<double>(reserved));
    EXPECT_NEAR(static_cast<double>(anonymous_bytes() - empty),
                static_cast<double>(memory.reserved()),
                0.08 * static_cast<double>(memory.reserved()));
    EXPECT_LE(memory.reserved(), counter.peak() + counter.live_blocks() * 4096);
  }
}

TEST_F(BudgetAllocatorTest, MetaTensorsGiveTheCurveOfTheCpu) {
  auto& meta = BudgetAllocator::meta();
  BudgetAllocatorScope counting(meta);
  struct Curve {
    std::vector<int64_t> points;
    std::vector<std::string> tags;
  };
  const auto run = [](MemoryCounter& counter, torch::Device device) {
    const auto start = counter.live();
    std::vector<torch::Tensor> weights, biases;
    for (int i = 0; i < 3; ++i) {
      weights.push_back(torch::zeros({256, 256}, device).requires_grad_());
      biases.push_back(torch::zeros({256}, device).requires_grad_());
    }
    const auto x = torch::empty({4096, 256}, device);
    Curve curve;
    counter.reset_peaks();
    for (int i = 0; i < 2; ++i) {
      auto y = x;
      {
        StepPhaseScope phase(StepPhase::kForward);
        for (size_t layer = 0; layer < weights.size(); ++layer)
          y = torch::gelu(torch::linear(y, weights[layer], biases[layer]));
        y = y.square().mean();
      }
      StepPhaseScope phase(StepPhase::kBackward);
      y.backward();
      curve.points.insert(curve.points.end(), {counter.live() - start, counter.peak() - start,
                                               counter.peak(StepPhase::kForward) - start,
                                               counter.peak(StepPhase::kBackward) - start});
    }
    for (const auto& use : counter.largest_tags(2)) curve.tags.push_back(use.name);
    return curve;
  };
  const auto here = run(counter, torch::kCPU);
  const auto elsewhere = run(meta.counter(), torch::kMeta);
  ASSERT_EQ(here.points.size(), elsewhere.points.size());
  for (size_t i = 0; i < here.points.size(); ++i) {
    // At its peak the CPU's forward reduces to a mean, with a scratch of 128 bytes.
    EXPECT_NEAR(here.points[i], elsewhere.points[i], i % 4 == 2 ? 128 : 0) << i;
  }
  EXPECT_EQ(elsewhere.tags, here.tags);
  EXPECT_EQ(elsewhere.tags[1], "AddmmBackward0");
  EXPECT_EQ(meta.counter().live(), 0);
  EXPECT_GT(elsewhere.points[1], 20 * kMiB);

  meta.counter().set_budget(int64_t{32} << 30);
  const auto gib = int64_t{1} << 30;
  auto large = torch::empty({30, gib}, torch::TensorOptions(torch::kByte).device(torch::kMeta));
  const auto text = out_of_memory([&] {
    torch::empty({3, gib}, torch::TensorOptions(torch::kByte).device(torch::kMeta));
  });
  EXPECT_NE(
      text.find("3.00 GiB of meta memory, but 30.00 GiB are live and the budget is 32.00 GiB"),
      std::string::npos)
      << text;
  meta.counter().set_budget({});
  meta.switch_off();
  large.reset();
  EXPECT_EQ(meta.counter().live(), 0);
}

}  // namespace
}  // namespace fleet::memory
