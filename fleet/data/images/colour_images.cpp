// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/colour_images.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {

ColourImages::ColourImages(std::shared_ptr<const Dataset> grey, int64_t scale)
    : grey_(std::move(grey)), scale_(scale) {
  if (scale < 1) throw UsageError("data", format("images scaled by {}", scale), "give at least 1");
}

// Plain loops, as in InMemoryImages: the loader's thread starts no threads of its own.
Batch ColourImages::get(std::span<const int64_t> indices, int64_t epoch) const {
  const auto grey = grey_->get(indices, epoch);
  if (grey.data.dim() != 4 || grey.data.size(1) != 1) {
    throw UsageError("data", "images that are not grey have their colours already",
                     "give a data set of N x 1 x H x W");
  }
  const int64_t height = grey.data.size(2), width = grey.data.size(3);
  Batch batch{torch::empty({grey.size(), 3, height * scale_, width * scale_}), grey.target};
  const auto data = grey.data.contiguous();
  const auto* in = data.const_data_ptr<float>();
  auto* out = batch.data.data_ptr<float>();
  const int64_t channel = height * width * scale_ * scale_;
  for (int64_t image = 0; image < grey.size(); ++image) {
    auto* first = out;
    for (int64_t y = 0; y < height; ++y, in += width) {
      auto* row = out;
      for (int64_t x = 0; x < width; ++x) out = std::fill_n(out, scale_, in[x]);
      for (int64_t copy = 1; copy < scale_; ++copy) out = std::copy_n(row, width * scale_, out);
    }
    for (int copy = 1; copy < 3; ++copy) out = std::copy_n(first, channel, out);
  }
  return batch;
}

}  // namespace fleet
