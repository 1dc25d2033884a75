// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "fleet/data/dataset.h"

namespace fleet {

/// Grey images for models that expect colour: three equal channels, and each pixel a square of
/// `scale` x `scale`, so that a net which halves its input five times still has pixels.
///
///   ColourImages images(fleet::load_fashion_mnist(dir, fleet::Phase::kTrain), /*scale=*/2);
///   images.get(indices, epoch).data;   // N x 3 x 56 x 56
class ColourImages : public Dataset {
 public:
  /// `grey` gives float N x 1 x H x W.
  explicit ColourImages(std::shared_ptr<const Dataset> grey, int64_t scale = 1);

  int64_t size() const override { return grey_->size(); }
  Batch get(std::span<const int64_t> indices, int64_t epoch) const override;

 private:
  std::shared_ptr<const Dataset> grey_;
  int64_t scale_;
};

}  // namespace fleet
