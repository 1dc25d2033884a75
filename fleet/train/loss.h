// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <variant>
#include <vector>

#include <torch/types.h>

namespace fleet {

/// A loss summed over what it is averaged over (tokens, say), and how many of them there are.
/// Micro-batches and ranks of unequal weight then add up exactly.
///
///   return fleet::WeightedLoss{.sum = token_losses.sum(), .weight = tokens};
struct WeightedLoss {
  torch::Tensor sum;
  double weight = 1;

  /// For use without an optimizer of Fleet's: `loss.mean().backward()`.
  torch::Tensor mean() const { return weight > 0 ? sum / weight : sum; }
  operator torch::Tensor() const { return mean(); }  // NOLINT(google-explicit-constructor)
};

/// A loss of several terms, each averaged over something else: the sum of their means. Each is
/// divided by its weight in the whole update, over all micro-batches and ranks.
///
///   return fleet::LossTerms{.terms = {{masked_lm.sum(), masked_tokens}, {pairs.sum(), samples}}};
///
/// The weights of the whole update have to be known before its first backward. They are when the
/// update has one micro-batch, or when the batch gives them (WeightedBatch); otherwise each term
/// takes a backward and a copy of the gradients of its own until the last micro-batch.
struct LossTerms {
  std::vector<WeightedLoss> terms;

  torch::Tensor mean() const {
    torch::Tensor sum;
    for (const auto& term : terms) sum = sum.defined() ? sum + term.mean() : term.mean();
    return sum;
  }
  operator torch::Tensor() const { return mean(); }  // NOLINT(google-explicit-constructor)
};

/// What a loss closure returns: a tensor is the mean over the samples it was given.
using Loss = std::variant<torch::Tensor, WeightedLoss, LossTerms>;

inline torch::Tensor mean_of(const Loss& loss) {
  return std::visit([](const auto& value) -> torch::Tensor { return value; }, loss);
}

}  // namespace fleet
