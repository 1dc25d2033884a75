// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::ops {

struct LinearCrossEntropyOptions {
  int64_t ignore_index = -100;  // rows with this label are ignored
  double label_smoothing = 0;
  int64_t chunk_rows = 0;  // whose logits exist at a time; 0: as many as take 32 MB, 256 at least
};

/// The sum over rows of the softmax cross entropy of x weight^T + bias: a projection onto a large
/// vocabulary (tied to an embedding, or not) and its loss. Logits exist for some rows at a time.
/// Where gradients are wanted they are computed with the loss, chunk by chunk, so that no product
/// is computed twice; kept for backward are the gradients of x, weight and bias.
///
/// x is rows x width (or more dimensions before the last), weight is classes x width, labels are
/// int64. As LibTorch's cross_entropy with reduction="sum".
///
///   auto sum = linear_cross_entropy(masked, words->weight, decoder_bias, labels);
torch::Tensor linear_cross_entropy(const torch::Tensor& x, const torch::Tensor& weight,
                                   const torch::Tensor& bias, const torch::Tensor& labels,
                                   const LinearCrossEntropyOptions& options = {});

}  // namespace fleet::ops
