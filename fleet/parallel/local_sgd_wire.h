// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

namespace fleet {

/// What a rank tells the others with an average of local SGD, beside its parameters.
struct LocalSgdRow {
  int64_t step = 0;   // updates of this rank so far, synchronous ones among them
  int64_t steps = 0;  // in the window
  double weight = 0;
  double loss_sum = 0;
  double lr = 0;
  int64_t updates = 0;         // of its optimizer
  bool ended = false;          // it is at the end of its epoch
  bool in_step = false;        // it came from `after_step`
  bool stop = false;           // it was asked to stop
  double compute_seconds = 0;  // for one update
};

/// The same of all ranks that took part.
struct LocalSgdRows {
  LocalSgdRow total;  // sums of weight and loss_sum; of the others the maximum
  bool all_ended = false;
  bool none_ended = false;
  bool all_in_step = false;
  bool any_stop = false;
  std::vector<double> compute_seconds;  // by rank; 0: not known, or lost
};

/// The layout of the metadata that is summed along with the parameters: a row of doubles for each
/// rank, written by that rank alone so that the sum is a gather, and behind the rows the sums for
/// BufferAverage. A row is LocalSgdRow, a flag that says "present", and the buffers' counters.
///
///   8 x (ranks x (11 + counters) + buffer sums) bytes
class LocalSgdWire {
 public:
  LocalSgdWire(int ranks, int64_t buffer_counters, int64_t buffer_sums);

  /// Clears everything and writes the row of `rank`.
  void write(int rank, const LocalSgdRow& row);
  /// Views for BufferAverage to write to and read from.
  torch::Tensor counters(int rank) const;
  torch::Tensor buffer_sums() const;

  /// To be summed over the ranks.
  const torch::Tensor& tensor() const { return tensor_; }

  /// After the sum. Ranks that are lost have no row.
  LocalSgdRows read() const;
  /// Of the ranks that are present, the largest value of each counter.
  torch::Tensor largest_counters() const;

 private:
  torch::Tensor rows() const;     // ranks x row
  torch::Tensor present() const;  // those rows that were written

  int64_t ranks_;
  int64_t counters_;
  int64_t sums_;
  torch::Tensor tensor_;
};

}  // namespace fleet
