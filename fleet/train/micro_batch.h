// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <vector>

namespace fleet {

/// A batch that knows how many samples it has.
template <typename B>
concept Batchlike = requires(const B& batch) {
  { batch.size() } -> std::convertible_to<int64_t>;
};

/// One that tells the weights of the terms of its loss (LossTerms), in their order: masked tokens
/// and samples, say. Then gradient merge does not have to find them out.
template <typename B>
concept WeightedBatch = Batchlike<B> && requires(const B& batch) {
  { batch.loss_weights() } -> std::convertible_to<std::vector<double>>;
};

/// One that it can also split, for gradient merge.
template <typename B>
concept Sliceable = Batchlike<B> && requires(const B& batch, int64_t i) {
  { batch.slice(i, i) } -> std::convertible_to<B>;
};

/// What is known of the batch of a call before its first forward.
struct BatchShape {
  int64_t samples = 0;                    // 0: empty, or not known (`is_micro_batch`)
  bool can_slice = false;                 // it can be split
  bool is_micro_batch = false;            // one of a window that several calls fill
  std::vector<double> loss_weights = {};  // empty: not known
};

/// One forward and backward of an update.
struct MicroBatch {
  int64_t begin = 0;  // samples of the batch; both 0 where they are not known
  int64_t end = 0;
  int64_t batch_samples = 0;   // of the whole batch on this rank; 0: not known
  double weight = 1;           // of a mean; a WeightedLoss has its own
  bool is_last = true;         // of the accumulation window
  int64_t window_size = 1;     // micro-batches that the window will have
  int64_t requested_size = 0;  // that gradient merge makes of the batch; 0: as many as come
  bool can_restart = true;     // its forward can be called again

  int64_t samples() const { return end - begin; }
};

}  // namespace fleet
