// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "fleet/data/dataset.h"

namespace fleet {

/// Light random changes to an image, drawn from (seed, epoch, sample): the same for any number of
/// ranks and threads, new in every epoch.
struct Augmentation {
  bool flip = false;      ///< left and right swapped in half of the draws
  int64_t max_shift = 0;  ///< moved by up to so many pixels each way; black moves in
  int64_t seed = 0;
};

/// Statistics that bring pixels, first scaled to 0..1, to mean 0 and deviation 1.
struct PixelStatistics {
  double mean = 0;
  double std = 1;
};

/// Grey images kept as bytes (Fashion-MNIST: 47 MB instead of 188), turned into normalised float
/// N x 1 x H x W on the way out.
///
///   InMemoryImages images(pixels, labels, {.mean = 0.5, .std = 0.5}, {.flip = true, .seed = 1});
///   Batch batch = images.get(indices, epoch);
class InMemoryImages : public Dataset {
 public:
  /// `pixels`: uint8 N x H x W; `labels`: int64 N.
  InMemoryImages(torch::Tensor pixels, torch::Tensor labels, PixelStatistics statistics,
                 Augmentation augmentation = {});

  int64_t size() const override { return pixels_.size(0); }
  Batch get(std::span<const int64_t> indices, int64_t epoch) const override;

  const torch::Tensor& pixels() const { return pixels_; }
  const torch::Tensor& labels() const { return labels_; }

 private:
  void write_image(int64_t index, int64_t epoch, float* out) const;

  torch::Tensor pixels_;
  torch::Tensor labels_;
  Augmentation augmentation_;
  std::array<float, 256> normalised_;  // what each byte becomes
};

}  // namespace fleet
