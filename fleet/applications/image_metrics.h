// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::applications {

/// Metrics of one batch of images, from one forward; each a tensor of one number.
struct ImageMetrics {
  torch::Tensor loss;  // differentiable
  torch::Tensor acc1;  // fraction of images whose class got the highest score
  torch::Tensor acc5;  // ... one of the five highest
};

/// `scores`: N x classes; `target`: int64 N.
ImageMetrics image_metrics(const torch::Tensor& scores, const torch::Tensor& target,
                           double label_smoothing);

}  // namespace fleet::applications
