#pragma once

#include <utility>
#include <variant>

#include <torch/types.h>

namespace fleet {

/// A loss summed over samples, and what the samples weigh together (tokens, say). Batches of
/// unequal weight then add up exactly, over micro-batches and over ranks.
///
///   return fleet::WeightedLoss{.sum = token_losses.sum(), .weight = tokens};
struct WeightedLoss {
  torch::Tensor sum;
  double weight = 1;
};

/// What a loss closure returns: a tensor is the mean over the samples it was given.
using Loss = std::variant<torch::Tensor, WeightedLoss>;

}  // namespace fleet
