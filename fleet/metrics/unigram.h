// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet {

/// The unigram baseline of a language model: token frequencies and nothing else.
///
/// Add-one smoothing: a token that was never counted has a finite loss.
///
///   const Unigram unigram(train.token_counts());
///   const auto baseline = unigram.loss(batch.masked_labels);   // beside metrics.masked_lm_loss
class Unigram {
 public:
  /// `counts`: one per token.
  explicit Unigram(const torch::Tensor& counts);

  /// The mean of -log p over `labels`, int64 N.
  torch::Tensor loss(const torch::Tensor& labels) const;

 private:
  torch::Tensor negative_log_;
};

}  // namespace fleet
