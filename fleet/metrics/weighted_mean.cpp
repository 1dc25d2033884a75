// SPDX-License-Identifier: Apache-2.0
#include "fleet/metrics/weighted_mean.h"

#include <ATen/ops/zeros.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {

WeightedMean::WeightedMean() : sums_(torch::zeros({2}, torch::kDouble)) {}

void WeightedMean::add(const torch::Tensor& mean, double weight) {
  if (mean.numel() != 1) {
    throw Error("metrics", format("a mean of {} numbers", mean.numel()), "give one number");
  }
  add(mean.detach().item<double>(), weight);
}

void WeightedMean::add(double mean, double weight) {
  if (!(weight >= 0)) throw Error("metrics", format("a weight of {}", weight), "give at least 0");
  if (weight == 0) return;
  auto* sums = sums_.data_ptr<double>();
  sums[0] += mean * weight;
  sums[1] += weight;
}

double WeightedMean::value() const {
  return weight() > 0 ? sums_.const_data_ptr<double>()[0] / weight() : 0;
}

double WeightedMean::weight() const { return sums_.const_data_ptr<double>()[1]; }

}  // namespace fleet
