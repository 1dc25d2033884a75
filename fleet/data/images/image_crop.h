// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fleet/data/split_mix.h"

namespace fleet {

/// A part of an image, in its pixels, that the model is to see.
struct ImageCrop {
  double x = 0, y = 0;
  double width = 0, height = 0;
  bool flip = false;       ///< left and right swapped
  bool shows_edge = true;  ///< ends like an image: pixels beyond it have no influence
};

/// Area, ratio and place of a training crop, as GoogLeNet drew them (arXiv 1409.4842, section 6): a
/// fraction of the area between `min_area` and 1, a ratio between 3/4 and 4/3, even in its
/// logarithm. When ten draws do not fit, as much of the middle as these ratios allow.
ImageCrop random_crop(int64_t width, int64_t height, double min_area, SplitMix64& random);

/// The middle `size` x `size` of the image scaled to `short_side`. Cut out of the scaled image:
/// pixels beyond the crop contribute to its edge.
ImageCrop centre_crop(int64_t width, int64_t height, int64_t short_side, int64_t size);

}  // namespace fleet
