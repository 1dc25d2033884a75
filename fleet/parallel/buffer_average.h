// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <torch/types.h>

#include "fleet/core/model_handle.h"

namespace fleet {

/// One set of buffers from the ranks' own, each weighted as its parameters are:
///   running_mean           m = mean(m_r)
///   running_var            mean(v_r) + mean((m_r - m)^2): the ranks' means differ too
///   other real numbers     their mean
///   one whole number       the largest (num_batches_tracked); tables of them stay as they are
///
/// Only differences to what all ranks had in common travel, so that a constant stays what it is,
/// bit for bit. Sums are in double; buffers are small.
///
///   BufferAverage buffers(net);                       // now all ranks hold the same
///   buffers.write(weight, sums, counters);            // this rank's, to be summed over the ranks
///   buffers.read(sums / weights, largest_counters);
///   buffers.apply();
class BufferAverage {
 public:
  explicit BufferAverage(const ModelHandle& model);

  int64_t sum_count() const { return sum_count_; }
  int64_t counter_count() const { return static_cast<int64_t>(counters_.size()); }

  /// `weight` times this rank's differences, and its counters. Doubles on the CPU.
  void write(double weight, const torch::Tensor& sums, const torch::Tensor& counters) const;
  /// The weighted mean of all ranks' differences, and the largest counters: what all ranks have in
  /// common from here on. The model's own buffers stay.
  void read(const torch::Tensor& means, const torch::Tensor& counters);
  /// Gives the model what `read` found.
  void apply() const;

  /// What all ranks have in common: one tensor per buffer, then one per counter.
  std::vector<torch::Tensor> common() const;
  void set_common(const std::vector<torch::Tensor>& common);

 private:
  struct Real {
    torch::Tensor buffer;
    torch::Tensor common;           // double, on the CPU
    std::optional<size_t> mean_at;  // of a running_var: where its running_mean is in `reals_`
  };
  struct Counter {
    torch::Tensor buffer;
    torch::Tensor common;
  };
  static torch::Tensor difference(const Real& real);

  std::vector<Real> reals_;
  std::vector<Counter> counters_;
  int64_t sum_count_ = 0;
};

}  // namespace fleet
