// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include <torch/types.h>

namespace fleet::ops {

struct RandomStream;

/// Where the random numbers of one op begin: seed, update, site, first sample. An argument of every
/// random op, so that a replay needs no generator and backward draws the same mask again.
using RandomCounter = std::array<int64_t, 4>;

/// Around a forward: tells random ops of Fleet which samples of which update they see. Sites are
/// numbered in the order of calls, so that equal programs have equal sites. Hence a sample's masks
/// are the same in one batch, in any of k micro-batches and on any rank. An op whose first
/// dimension is not that of the samples, where their number is known, has random numbers of its own
/// in every micro-batch.
///
/// `distributed_optimizer` sets it around every closure. Without one, each op takes a seed of its
/// own from LibTorch's default generator.
///
///   const RandomScope scope({.seed = 1, .update = 7, .first_sample = 128});
///   y = dropout(x, 0.1);   // rows 0, 1, ... are samples 128, 129, ... of update 7
class RandomScope {
 public:
  struct Position {
    int64_t seed = 0;
    int64_t update = 0;
    int64_t first_sample = 0;
    int64_t samples = 0;  // of the forward; 0: not known
    int64_t stream = 0;   // samples of one number have other masks in another stream
  };
  explicit RandomScope(const Position& position);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  /// The samples of the forward: as many as were said, or the largest first dimension that a random
  /// op had; 0 where there was none.
  int64_t samples() const { return samples_; }

 private:
  friend RandomCounter next_counter(int64_t samples);
  friend int64_t samples_of_forward();
  Position position_;
  int64_t next_site_ = 0;
  int64_t samples_ = 0;
  RandomScope* outer_;
};

/// For the next random op of this thread, over so many samples.
RandomCounter next_counter(int64_t samples);

/// Of this thread's forward; 0: not known.
int64_t samples_of_forward();

/// What kernels draw from: `p` of the elements are dropped, to 1/65536.
RandomStream random_stream(double p, c10::IntArrayRef counter);

/// The mask of a tensor of such sizes, as bytes on the CPU, 1: kept. The first dimension is that of
/// samples. For ops that have no kernel for a type or a device.
torch::Tensor keep_mask(c10::IntArrayRef sizes, const RandomStream& stream);

}  // namespace fleet::ops
