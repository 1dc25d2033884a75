// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet {

/// Samples and their targets; the first dimension of both counts samples.
///
/// A batch may be empty (the last of an epoch, on a rank for which nothing is left): its tensors
/// are then defined, with a first dimension of 0.
///
///   for (int64_t begin = 0; begin < batch.size(); begin += 32)
///     train_on(batch.slice(begin, std::min(begin + 32, batch.size())));
struct Batch {
  torch::Tensor data;
  torch::Tensor target;

  int64_t size() const { return data.defined() ? data.size(0) : 0; }

  /// Samples [begin, end), as views: nothing is copied.
  Batch slice(int64_t begin, int64_t end) const {
    return {data.narrow(0, begin, end - begin), target.narrow(0, begin, end - begin)};
  }
};

}  // namespace fleet
