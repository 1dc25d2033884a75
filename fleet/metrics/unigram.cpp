// SPDX-License-Identifier: Apache-2.0
#include "fleet/metrics/unigram.h"

namespace fleet {

Unigram::Unigram(const torch::Tensor& counts) {
  const auto seen = counts.to(torch::kDouble) + 1;
  negative_log_ = -(seen / seen.sum()).log();
}

torch::Tensor Unigram::loss(const torch::Tensor& labels) const {
  return negative_log_.index_select(0, labels.to(negative_log_.device())).mean();
}

}  // namespace fleet
