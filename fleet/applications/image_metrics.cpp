// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/image_metrics.h"

#include <algorithm>

#include <ATen/ops/cross_entropy_loss.h>

namespace fleet::applications {

ImageMetrics image_metrics(const torch::Tensor& scores, const torch::Tensor& target,
                           double label_smoothing) {
  const auto best = std::get<1>(scores.detach().topk(std::min<int64_t>(5, scores.size(1)), 1));
  const auto is_right = best.eq(target.unsqueeze(1)).to(torch::kFloat);
  return {
      .loss =
          torch::cross_entropy_loss(scores, target, {}, at::Reduction::Mean, -100, label_smoothing),
      .acc1 = is_right.select(1, 0).mean(),
      .acc5 = is_right.sum(1).mean(),
  };
}

}  // namespace fleet::applications
