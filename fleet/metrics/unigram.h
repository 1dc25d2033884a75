#pragma once

#include <torch/types.h>

namespace fleet {

/// What a model scores that knows how often each token comes, and nothing else: the least that a
/// language model has to beat.
///
/// Each token counts as seen once more than it was, so that one which was never seen does not cost
/// infinitely much.
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
