#pragma once

#include <cstdint>

#include <torch/types.h>

namespace fleet {

/// Counts how often the right class is among the k best, for every k up to `max_k`.
///
/// The counts are integers in one tensor, so that the figure over all ranks is one sum away and
/// exact, whatever each rank has seen. A class that ties with the right one counts as better, and
/// so does NaN: a net that says the same for everything scores nothing.
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

  /// int64 {right within 1, ..., right within max_k, samples}, on the CPU.
  torch::Tensor& counts() { return counts_; }

  /// The share of samples that were right within the best `k`, 0..1; 0 when there was no sample.
  double top(int64_t k) const;

  int64_t samples() const;
  void reset() { counts_.zero_(); }

 private:
  int64_t max_k_;
  torch::Tensor counts_;
};

}  // namespace fleet
