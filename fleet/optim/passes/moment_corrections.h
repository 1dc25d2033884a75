// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <torch/types.h>

namespace fleet::optim {

/// What moments that start at 0 lack, for each parameter by its own number of updates t, as
/// torch.optim counts: one that pauses, or is first used late, is corrected as if the others were
/// not there.
class MomentCorrections {
 public:
  /// What the moments of a span are divided by.
  struct Factors {
    double first = 1;  // 1 - beta1^t
    double second = 1;
  };

  /// `updates`: t of every span, the update under way included.
  void set(const torch::Tensor& updates, double beta1, double beta2);
  const Factors& operator[](size_t span) const { return factors_[span]; }

 private:
  std::vector<Factors> factors_;
};

}  // namespace fleet::optim
