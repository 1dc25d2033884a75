// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace fleet {

struct SyntheticImagesOptions {
  int64_t classes = 10;
  int64_t per_class = 20;
  int64_t width = 500;  ///< in pixels
  int64_t height = 375;
  int64_t seed = 0;   ///< another one: other images of the same classes
  double noise = 18;  ///< deviation of the grain, in steps of 0..255; 18 gives files of 100 KB
};

/// Writes JPEG files that can be learnt from: each class is a coarse pattern of colours under
/// grain. For "data/train", data/train/class_000/00000.jpg and so on, and the list data/train.txt;
/// both can be given to `load_imagenet_from_file`.
///
///   fleet::write_synthetic_images("data/train", {.classes = 100, .per_class = 50});
///   fleet::write_synthetic_images("data/val", {.classes = 100, .per_class = 5, .seed = 1});
void write_synthetic_images(const std::filesystem::path& folder,
                            const SyntheticImagesOptions& options = {});

}  // namespace fleet
