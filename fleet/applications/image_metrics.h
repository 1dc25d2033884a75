// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::applications {

/// What one forward says about a batch of images; each a tensor of one number.
struct ImageMetrics {
  torch::Tensor loss;  // can be driven backward
  torch::Tensor acc1;  // share of images whose class got the highest score
  torch::Tensor acc5;  // ... one of the five highest
};

/// `scores`: N x classes; `target`: int64 N.
ImageMetrics image_metrics(const torch::Tensor& scores, const torch::Tensor& target,
                           double label_smoothing);

}  // namespace fleet::applications
