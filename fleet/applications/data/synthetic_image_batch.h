// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fleet/data/batch.h"

namespace fleet::applications {

/// How many images of which size, in how many classes.
struct SyntheticImages {
  int64_t classes = 10;
  int64_t image_size = 224;  // of a side, in pixels
  torch::Device device = torch::kCPU;
};

/// Images with labels that can be learned: each class is a coarse pattern of colours under noise. A
/// batch follows from its arguments alone; on the meta device it has shapes only.
///
///   auto batch = synthetic_image_batch({.classes = 8, .image_size = 32}, 64, /*seed=*/step);
Batch synthetic_image_batch(const SyntheticImages& images, int64_t batch_size, int64_t seed);

}  // namespace fleet::applications
