// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/random_scope.h"

#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "fleet/ops/kernels/layer_kernels.h"

#include "tests/support/error_of.h"

namespace fleet::ops {
namespace {

std::vector<const LayerKernels*> all_kernels() {
  std::vector<const LayerKernels*> result;
  for (const char* name : {"generic", "avx2", "avx512", "avx512_bf16"}) {
    if (const auto* kernels = layer_kernels_for(name)) result.push_back(kernels);
  }
  return result;
}

using Words = std::array<uint32_t, 4>;

// By the paper, one counter at a time.
Words philox(Words counter, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// Counter i of a block, from the kernel's 16-bit numbers.
Words words_of(const std::array<uint16_t, 64>& bits, size_t i) {
  const auto word = [&](size_t at) {
    return static_cast<uint32_t>(bits[at]) | static_cast<uint32_t>(bits[at + 1]) << 16;
  };
  return {word(4 * i), word(4 * i + 2), word(32 + 4 * i), word(32 + 4 * i + 2)};
}

// kat_vectors of Random123, philox4x32 with 10 rounds.
TEST(RandomStreamTest, GivesThePublishedNumbersOnEveryInstructionSet) {
  struct Known {
    Words counter;
    uint64_t key;
    Words numbers;
  };
  const Known known[] = {
      {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       0xffffffffffffffff,
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       0x299f31d0a4093822,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& [counter, key, numbers] : known) {
    EXPECT_EQ(philox(counter, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)),
              numbers);
    const auto stream =
        random_stream(0.5, {static_cast<int64_t>(key), counter[3], counter[2], /*first sample=*/0});
    for (const auto* kernels : all_kernels()) {
      std::array<uint16_t, 64> bits;
      kernels->random_bits(stream, counter[1], counter[0] / 8, bits.data());
      EXPECT_EQ(words_of(bits, counter[0] % 8), numbers) << kernels->name;
    }
  }
}

TEST(RandomStreamTest, IsTheSameOnEveryInstructionSetFromAnyElement) {
  const auto stream = random_stream(0.3, {1234567890123, 5, 6, 7});
  constexpr int64_t kCount = 1000;
  std::vector<uint8_t> expected(kCount);
  for (int64_t e = 0; e < kCount; ++e) {
    const auto in_block = static_cast<uint32_t>(e % 64);
    const uint32_t counter = static_cast<uint32_t>(e / 64) * 8 + in_block % 32 / 4;
    const auto words = philox({counter, 7 + 2, 6, 5}, static_cast<uint32_t>(1234567890123),
                              static_cast<uint32_t>(int64_t{1234567890123} >> 32));
    const uint32_t word = words[(in_block / 32) * 2 + in_block % 4 / 2];
    const uint32_t half = in_block % 2 == 0 ? word & 0xffffu : word >> 16;
    expected[static_cast<size_t>(e)] = half < stream.threshold ? 1 : 0;
  }
  for (const auto* kernels : all_kernels()) {
    for (const int64_t first : {0, 1, 63, 64, 130}) {
      std::vector<uint8_t> got(static_cast<size_t>(kCount - first));
      kernels->keep_bytes(stream, 2, first, kCount - first, got.data());
      EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin() + first))
          << kernels->name << " from element " << first;
    }
  }
}

torch::Tensor mask(double p, const RandomCounter& counter, int64_t samples = 64,
                   int64_t elements = 4096) {
  return keep_mask({samples, elements}, random_stream(p, counter)).to(torch::kDouble);
}

// Within five standard deviations: by chance once in two million.
TEST(RandomStreamTest, KeepsTheRightShare) {
  for (const double p : {0.01, 0.1, 0.3, 0.5, 0.9}) {
    const auto kept = mask(p, {42, 3, 1, 0});
    const double n = static_cast<double>(kept.numel());
    EXPECT_NEAR(kept.mean().item<double>(), 1 - p, 5 * std::sqrt(p * (1 - p) / n) + 1.0 / 131072);
    // In every sample, and in every column.
    const double samples = 64, elements = 4096;
    EXPECT_LT((kept.mean(1) - (1 - p)).abs().max().item<double>(),
              5.5 * std::sqrt(p * (1 - p) / elements) + 1e-5);
    EXPECT_LT((kept.mean(0) - (1 - p)).abs().max().item<double>(),
              (p < 0.05 ? 9 : 6) * std::sqrt(p * (1 - p) / samples) + 1e-5);  // few are skewed
  }
}

TEST(RandomStreamTest, SitesSamplesUpdatesAndSeedsAreIndependent) {
  const double p = 0.5;
  const auto base = mask(p, {42, 3, 1, 0}) - 0.5;
  const double n = static_cast<double>(base.numel());
  const auto correlation = [&](const torch::Tensor& other) {
    return ((other - 0.5) * base).mean().item<double>() / 0.25;
  };
  EXPECT_NEAR(correlation(mask(p, {42, 3, 1, 0})), 1, 1e-9);
  const double limit = 5 / std::sqrt(n);
  EXPECT_NEAR(correlation(mask(p, {43, 3, 1, 0})), 0, limit);
  EXPECT_NEAR(correlation(mask(p, {42, 4, 1, 0})), 0, limit);
  EXPECT_NEAR(correlation(mask(p, {42, 3, 2, 0})), 0, limit);
  EXPECT_NEAR(correlation(mask(p, {42, 3, 1, 64})), 0, limit);
  EXPECT_NEAR(correlation(mask(p, {42, 3, 1, 0}).roll(1, 0)), 0, limit);  // neighbouring samples
  for (const int64_t lag : {1, 2, 4, 8, 32, 64}) {                        // and elements
    EXPECT_NEAR(correlation(mask(p, {42, 3, 1, 0}).roll(lag, 1)), 0, limit) << lag;
  }
}

// Pairs of neighbours fall into four cells; chi-square with 3 degrees of freedom.
TEST(RandomStreamTest, PairsOfNeighboursAreEvenlySpread) {
  const auto kept = mask(0.5, {7, 0, 0, 0}).view({-1, 2});
  const auto cell = (kept.select(1, 0) * 2 + kept.select(1, 1)).to(torch::kLong);
  const auto counts = torch::bincount(cell, {}, 4).to(torch::kDouble);
  const double expected = static_cast<double>(cell.numel()) / 4;
  const double chi = ((counts - expected).square() / expected).sum().item<double>();
  EXPECT_LT(chi, 27.9);  // once in 260,000
}

TEST(RandomStreamTest, KeepsAllAtZeroAndNoneAtOne) {
  EXPECT_TRUE(mask(0, {1, 0, 0, 0}).eq(1).all().item<bool>());
  EXPECT_TRUE(mask(1, {1, 0, 0, 0}).eq(0).all().item<bool>());
  EXPECT_EQ(random_stream(1, {1, 0, 0, 0}).scale, 0);
  EXPECT_NE(testing::error_message_of([] {
              random_stream(1.5, {1, 0, 0, 0});
            }).find("between 0 and 1"),
            std::string::npos);
}

TEST(RandomScopeTest, NumbersSitesInTheOrderOfCalls) {
  const RandomScope scope({.seed = 9, .update = 4, .first_sample = 32});
  EXPECT_EQ(next_counter(8), (RandomCounter{9, 4, 0, 32}));
  EXPECT_EQ(next_counter(16), (RandomCounter{9, 4, 1, 32}));
  EXPECT_EQ(scope.samples(), 16);
  {
    const RandomScope inner({.seed = 1});
    EXPECT_EQ(next_counter(4), (RandomCounter{1, 0, 0, 0}));
  }
  EXPECT_EQ(next_counter(8), (RandomCounter{9, 4, 2, 32}));
}

TEST(RandomScopeTest, WithoutOneTheGeneratorOfLibTorchGivesSeeds) {
  torch::manual_seed(5);
  const auto first = next_counter(4), second = next_counter(4);
  EXPECT_NE(first, second);
  torch::manual_seed(5);
  EXPECT_EQ(next_counter(4), first);
}

}  // namespace
}  // namespace fleet::ops
