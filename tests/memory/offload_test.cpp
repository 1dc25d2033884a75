// SPDX-License-Identifier: Apache-2.0
// Values that cross the cuts of a forward, on disk until backward.
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/checkpoint.h"
#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"

#include "tests/memory/equal_tensors.h"
#include "tests/support/error_of.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet::memory {
namespace {

using testing::error_message_of;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int kSegments = 8;

/// A chain whose checkpoints have 1 MiB each, and the gradients of its weights.
struct Chain {
  std::vector<torch::Tensor> weights;
  torch::Tensor input;

  Chain() {
    torch::manual_seed(11);
    for (int i = 0; i <= kSegments; ++i) {
      weights.push_back((torch::randn({64, 64}) * 0.1).requires_grad_());
    }
    input = torch::randn({4096, 64});
  }

  /// The idiom of fleet::checkpoint's comment: while it cuts, `x` is still the old value.
  torch::Tensor forward() const {
    auto x = input;
    for (int i = 0; i < kSegments; ++i) {
      x = checkpoint(torch::tanh(torch::matmul(x, weights[static_cast<size_t>(i)])) + 0.1,
                     std::to_string(i));
    }
    return torch::matmul(x, weights.back()).square().mean();
  }

  std::vector<torch::Tensor> backward(const torch::Tensor& loss, bool retain = false) const {
    auto gradients = torch::autograd::grad({loss}, weights, {}, retain);
    return {gradients.begin(), gradients.end()};
  }
};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (int i = 0; i < kSegments; ++i) all.push_back(std::to_string(i));
  return all;
}

torch::Tensor recorded(const Chain& chain, const Offload* offload) {
  NamedCuts policy(names());
  const TapeScope scope(policy, offload);
  return chain.forward();
}

int64_t live() { return BudgetAllocator::cpu().counter().live(); }

TEST(OffloadTest, CheckpointsAreOffloadedAndGradientsAreTheSameBitForBit) {
  const BudgetAllocatorScope counting(BudgetAllocator::cpu());
  const auto file = std::make_shared<OffloadFile>();
  file->read(file->write(torch::ones({kMiB})));  // its own buffers are there
  const Chain chain;
  const auto expected = chain.backward(chain.forward());

  const auto before = live();
  int64_t kept = 0;
  {
    const auto loss = recorded(chain, nullptr);
    kept = live() - before;
  }
  EXPECT_EQ(live(), before);

  const Offload offload(file);
  const auto at_first = file->statistics();
  {
    const auto loss = recorded(chain, &offload);
    // Crossing values 0 to 6 have been read by a segment that has ended; the last of them is on its
    // way back already, and what the last segment reads stays.
    file->drain();
    EXPECT_LE(live() - before, kept - 6 * kMiB);
    EXPECT_GE(file->statistics().bytes_written - at_first.bytes_written, 6 * kMiB);
    expect_equal(chain.backward(loss), expected);
    EXPECT_GE(file->statistics().bytes_read - at_first.bytes_read, 6 * kMiB);
  }
  EXPECT_EQ(live(), before);
  EXPECT_EQ(file->statistics().extent_bytes, 0);
  EXPECT_EQ(Region::alive(), 0);
}

TEST(OffloadTest, WithoutAFileTheHostHoldsThem) {
  const Chain chain;
  const auto expected = chain.backward(chain.forward());
  const Offload offload(nullptr);
  for (const bool retain : {false, true}) {
    const auto loss = recorded(chain, &offload);
    expect_equal(chain.backward(loss, retain), expected);
    if (retain) expect_equal(chain.backward(loss), expected);
  }
}

TEST(OffloadTest, ASecondBackwardFindsWhatTheFirstFetched) {
  const Chain chain;
  const auto expected = chain.backward(chain.forward());
  const auto file = std::make_shared<OffloadFile>();
  const Offload offload(file);
  const auto loss = recorded(chain, &offload);
  file->drain();
  expect_equal(chain.backward(loss, /*retain=*/true), expected);
  const auto read = file->statistics().bytes_read;
  expect_equal(chain.backward(loss), expected);
  EXPECT_EQ(file->statistics().bytes_read, read);
}

TEST(OffloadTest, AGraphThatIsFreedFreesItsExtents) {
  const Chain chain;
  const auto file = std::make_shared<OffloadFile>();
  const Offload offload(file);
  recorded(chain, &offload);
  EXPECT_TRUE(launch::eventually([&] { return file->statistics().extent_bytes == 0; }));
  EXPECT_EQ(file->statistics().queued_bytes, 0);
  EXPECT_EQ(Region::alive(), 0);
}

TEST(OffloadTest, WhatTheUserHoldsOrIsSmallStays) {
  const Chain chain;
  const auto file = std::make_shared<OffloadFile>();
  Offload offload(file);
  offload.min_bytes = kMiB + 1;
  const auto expected = chain.backward(chain.forward());
  expect_equal(chain.backward(recorded(chain, &offload)), expected);
  EXPECT_EQ(file->statistics().bytes_written, 0);

  offload.min_bytes = kMiB;
  std::vector<torch::Tensor> held;
  NamedCuts policy(names());
  torch::Tensor loss;
  {
    const TapeScope scope(policy, &offload);
    auto x = chain.input;
    for (int i = 0; i < kSegments; ++i) {
      x = checkpoint(torch::tanh(torch::matmul(x, chain.weights[static_cast<size_t>(i)])) + 0.1,
                     std::to_string(i));
      held.push_back(x);
    }
    loss = torch::matmul(x, chain.weights.back()).square().mean();
  }
  file->drain();
  EXPECT_EQ(file->statistics().bytes_written, 0);
  expect_equal(chain.backward(loss), expected);
}

// Views of one value, kept under several shapes, are offloaded together or not at all; a skip
// connection once the last segment that reads it is over.
TEST(OffloadTest, ViewsAndSkipsAreFetchedRight) {
  torch::manual_seed(12);
  std::vector<torch::Tensor> weights;
  for (int i = 0; i < 6; ++i) weights.push_back((torch::randn({64, 64}) * 0.1).requires_grad_());
  const auto input = torch::randn({64, 64, 64});
  const auto forward = [&] {
    auto x = input;
    torch::Tensor skip;
    for (int i = 0; i < 6; ++i) {
      const auto& w = weights[static_cast<size_t>(i)];
      auto y = torch::linear(x, w).relu();                     // saves x as [4096, 64]
      y = y + torch::matmul(x.transpose(1, 2), x).softmax(2);  // and as it is
      if (i == 4) {
        y = y + skip * x.sum();
        skip.reset();
      }
      x = checkpoint(y.clamp_(-2, 2), std::to_string(i));
      if (i == 1) skip = x;
    }
    return x.square().mean();
  };
  const auto plain = forward();
  const auto expected = torch::autograd::grad({plain}, weights);
  const auto file = std::make_shared<OffloadFile>();
  const Offload offload(file);
  NamedCuts policy(names());
  torch::Tensor loss;
  {
    const TapeScope scope(policy, &offload);
    loss = forward();
  }
  EXPECT_TRUE(torch::equal(loss, plain));
  file->drain();
  EXPECT_GE(file->statistics().bytes_written, 3 * kMiB);
  expect_equal(torch::autograd::grad({loss}, weights), expected);
}

// What a segment made is its own, although backward knows it only by a view from the next one.
TEST(OffloadTest, AStorageIsOffloadedWithTheViewsThatLaterSegmentsMadeOfIt) {
  torch::manual_seed(13);
  const auto weight = (torch::randn({64, 64}) * 0.1).requires_grad_();
  const auto input = torch::randn({4096, 64});
  const auto forward = [&] {
    auto x = checkpoint(torch::matmul(input, weight), "made");  // saves nothing of its result
    x = checkpoint(x.view({64, 64, 64}).transpose(0, 1).square(), "viewed");  // saves the view
    x = checkpoint(x.tanh(), "later");
    return x.mean();
  };
  class First final : public NamedCuts {
   public:
    using NamedCuts::NamedCuts;
    Treatment treatment(int) override { return Treatment::kKeep; }
    bool offloads(int segment) override { return segment == 0; }
  };
  const auto expected = torch::autograd::grad({forward()}, {weight});
  const auto file = std::make_shared<OffloadFile>();
  Offload offload(file);
  offload.is_synchronous =
      true;  // or the end of the forward would call it back before it is written
  First policy({"made", "viewed", "later"});
  torch::Tensor loss;
  {
    const TapeScope scope(policy, &offload);
    loss = forward();
  }
  EXPECT_EQ(file->statistics().bytes_written, kMiB);
  expect_equal(torch::autograd::grad({loss}, {weight}), expected);
}

TEST(OffloadTest, AFullDiskIsAnErrorOfTheForwardOrTheBackward) {
  const Chain chain;
  const auto file = std::make_shared<OffloadFile>(OffloadOptions{.max_file_bytes = 2 * kMiB});
  const Offload offload(file);
  const auto text = error_message_of([&] {
    const auto loss = recorded(chain, &offload);
    EXPECT_TRUE(launch::eventually([&] { return file->statistics().queued_bytes == 0; }));
    chain.backward(loss);
  });
  EXPECT_TRUE(says(text, "[offload]")) << text;
  compat::flush_failed_backward();
  EXPECT_EQ(Region::alive(), 0);
}

TEST(OffloadTest, ATruncatedFileIsAnErrorOfTheBackward) {
  const Chain chain;
  const auto file = std::make_shared<OffloadFile>();
  const Offload offload(file);
  const auto loss = recorded(chain, &offload);
  file->drain();
  ASSERT_EQ(ftruncate(file->descriptor(), 0), 0);
  EXPECT_TRUE(says(error_message_of([&] { chain.backward(loss); }), "the file ends before that"));
  compat::flush_failed_backward();
}

}  // namespace
}  // namespace fleet::memory
