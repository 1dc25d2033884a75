// SPDX-License-Identifier: Apache-2.0
#include "fleet/metrics/accuracy.h"

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {

Accuracy::Accuracy(int64_t max_k) : max_k_(max_k) {
  if (max_k < 1) throw Error("metrics", format("top-{} accuracy has no meaning", max_k));
  counts_ = torch::zeros({max_k + 1}, torch::kInt64);
}

void Accuracy::add(const torch::Tensor& scores, const torch::Tensor& target) {
  if (scores.dim() != 2 || target.dim() != 1 || scores.size(0) != target.size(0)) {
    throw Error(
        "metrics",
        format("accuracy needs scores N x classes and N targets, but the scores have {} "
               "dimensions and {} rows, the targets {} dimensions and {} entries",
               scores.dim(), scores.dim() > 0 ? scores.size(0) : 1, target.dim(), target.numel()));
  }
  const torch::NoGradGuard no_grad;
  const auto right_score = scores.gather(1, target.unsqueeze(1));
  const auto better = scores.lt(right_score).logical_not().sum(1) - 1;  // less the right one itself
  const auto ks = torch::arange(1, max_k_ + 1, better.options());
  const auto right = better.unsqueeze(1).lt(ks).sum(0);  // per k
  counts_.narrow(0, 0, max_k_).add_(right.to(counts_.device()));
  counts_[max_k_].add_(scores.size(0));
}

double Accuracy::top(int64_t k) const {
  if (k < 1 || k > max_k_) {
    throw Error("metrics", format("top-{} was not counted, only 1..{}", k, max_k_),
                format("make it an Accuracy({})", k));
  }
  const int64_t total = samples();
  return total == 0 ? 0.0 : counts_[k - 1].item<double>() / static_cast<double>(total);
}

int64_t Accuracy::samples() const { return counts_[max_k_].item<int64_t>(); }

}  // namespace fleet
