// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace fleet {

/// Top-k accuracy, for every k up to `max_k`.
///
/// The counts are integers in one tensor, so that the accuracy over all ranks takes one all-reduce
/// and is exact. A class that ties with the target counts as better, and so does NaN: a net with
/// constant output scores 0.
///
///   Accuracy accuracy(5);
///   for (const Batch& batch : test.epoch(0)) accuracy.add(net->forward(batch.data), batch.target);
///   fleet::all_reduce_sum(accuracy.counts());
///   const double top1 = accuracy.top(1), top5 = accuracy.top(5);
class Accuracy {
 public:
  explicit Accuracy(int64_t max_k = 1);

  /// `scores`: N x classes; `target`: int64 N, each a class. N may be 0.
  void add(const torch::Tensor& scores, const torch::Tensor& target);

  /// int64 {correct within top 1, ..., correct within top max_k, samples}, on the CPU.
  torch::Tensor& counts() { return counts_; }

  /// Top-`k` accuracy, 0..1; 0 without samples.
  double top(int64_t k) const;

  int64_t samples() const;
  void reset() { counts_.zero_(); }

 private:
  int64_t max_k_;
  torch::Tensor counts_;
};

}  // namespace fleet
