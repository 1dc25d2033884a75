// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet {

/// A weighted mean: of batches of unequal size, sentences of unequal length.
///
/// Sum and weight are in one tensor, so that the mean over all ranks takes one all-reduce.
///
///   WeightedMean loss;
///   for (const Batch& batch : test.epoch(0)) loss.add(model.loss(batch), batch.size());
///   fleet::all_reduce_sum(loss.sums());
///   const double mean = loss.value();
class WeightedMean {
 public:
  WeightedMean();

  /// `mean`: one number. With weight 0 it does not count, whatever it is: the mean of an empty
  /// batch is NaN.
  void add(const torch::Tensor& mean, double weight);
  void add(double mean, double weight);

  /// double {sum, weight}, on the CPU.
  torch::Tensor& sums() { return sums_; }

  /// 0 when nothing was added.
  double value() const;
  double weight() const;
  void reset() { sums_.zero_(); }

 private:
  torch::Tensor sums_;
};

}  // namespace fleet
