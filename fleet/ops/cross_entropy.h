// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::ops {

struct CrossEntropyOptions {
  enum class Reduction { kNone, kMean, kSum };
  Reduction reduction = Reduction::kMean;  // the mean is over rows that are not ignored
  int64_t ignore_index = -100;             // rows with this label are ignored
  double label_smoothing = 0;
};

/// The softmax cross entropy of rows of logits with int64 labels, as LibTorch's. The gradient is
/// computed with the loss, while a row is in the cache, and kept for backward instead of the
/// logarithms of the softmax. The loss is float, whatever the logits are; in double it is double.
///
///   auto loss = cross_entropy(logits.flatten(0, 1), labels.flatten());
torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& labels,
                            const CrossEntropyOptions& options = {});

/// The first row whose label is neither a class nor `ignore_index`; -1: none.
int64_t first_bad_label(const torch::Tensor& labels, int64_t classes, int64_t ignore_index);

/// An error that names the label of that row, if there is one.
void check_labels(const torch::Tensor& labels, int64_t classes, int64_t ignore_index);

}  // namespace fleet::ops
