// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fleet/data/formats/jpeg.h"
#include "fleet/data/images/image_crop.h"

namespace fleet {

struct ImageResizeOptions {
  int64_t size = 224;
  std::array<double, 3> mean = {0, 0, 0};  ///< of red, green and blue in 0..1
  std::array<double, 3> std = {1, 1, 1};
  bool channels_last = true;  ///< red, green and blue side by side; off: one plane after another
};

/// Scales a part of an image to a square of normalised floats.
///
/// Bilinear with the filter widened when it shrinks (antialias), as Pillow and torchvision do it:
/// 1.0 at the centre of an output pixel, down to 0 at one output pixel's distance. In float
/// throughout, where Pillow rounds to bytes twice. One thread may use it at a time.
///
///   ImageResize resize({.size = 224});
///   resize.run(area, crop, out);   // out: 3 * 224 * 224 floats
class ImageResize {
 public:
  explicit ImageResize(const ImageResizeOptions& options);

  /// `crop` in the coordinates of the image that `area` is a part of. The area must hold all of the
  /// crop.
  void run(const PixelArea& area, const ImageCrop& crop, float* out);

 private:
  // What a ResizeTaps points to.
  struct Taps {
    int64_t per_pixel = 0;
    std::vector<int64_t> first;
    std::vector<float> weights;
  };

  void find_taps(double begin, double extent, int64_t input, Taps& taps) const;

  ImageResizeOptions options_;
  std::array<float, 4> scale_{}, shift_{};
  Taps across_, down_;
  std::vector<float> row_;  // the input's width, already scaled in height
};

}  // namespace fleet
