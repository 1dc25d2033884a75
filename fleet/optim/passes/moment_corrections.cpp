// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/passes/moment_corrections.h"

#include <cmath>

namespace fleet::optim {

void MomentCorrections::set(const torch::Tensor& updates, double beta1, double beta2) {
  const auto* const counts = updates.const_data_ptr<double>();
  factors_.resize(static_cast<size_t>(updates.numel()));
  // As a rule all parameters have the same count: then powers are taken once.
  for (size_t i = 0; i < factors_.size(); ++i) {
    if (i > 0 && counts[i] == counts[i - 1]) {
      factors_[i] = factors_[i - 1];
    } else {
      factors_[i] = {.first = 1 - std::pow(beta1, counts[i]),
                     .second = 1 - std::pow(beta2, counts[i])};
    }
  }
}

}  // namespace fleet::optim
