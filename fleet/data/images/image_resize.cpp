// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/image_resize.h"

#include <algorithm>
#include <cmath>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/images/resize_kernels.h"

namespace fleet {

ImageResize::ImageResize(const ImageResizeOptions& options) : options_(options) {
  for (size_t c = 0; c < 3; ++c) {
    scale_[c] = static_cast<float>(1 / (255 * options_.std[c]));
    shift_[c] = static_cast<float>(-options_.mean[c] / options_.std[c]);
  }
}

void ImageResize::find_taps(double begin, double extent, int64_t input, Taps& taps) const {
  const int64_t size = options_.size;
  const double step = extent / static_cast<double>(size);
  const double reach = std::max(step, 1.0);
  taps.per_pixel = std::min(input, static_cast<int64_t>(std::ceil(2 * reach)));
  taps.first.resize(static_cast<size_t>(size));
  taps.weights.resize(static_cast<size_t>(size * taps.per_pixel));
  float* weights = taps.weights.data();
  for (int64_t i = 0; i < size; ++i, weights += taps.per_pixel) {
    const double centre = begin + (static_cast<double>(i) + 0.5) * step;
    const auto wanted = static_cast<int64_t>(std::floor(centre - reach + 0.5));
    const int64_t first = std::clamp<int64_t>(wanted, 0, input - taps.per_pixel);
    double sum = 0;
    for (int64_t k = 0; k < taps.per_pixel; ++k) {
      const double distance = std::abs(static_cast<double>(first + k) + 0.5 - centre) / reach;
      const double weight = std::max(0.0, 1 - distance);
      weights[k] = static_cast<float>(weight);
      sum += weight;
    }
    for (int64_t k = 0; k < taps.per_pixel; ++k) weights[k] = static_cast<float>(weights[k] / sum);
    taps.first[static_cast<size_t>(i)] = first;
  }
}

void ImageResize::run(const PixelArea& area, const ImageCrop& crop, float* out) {
  const double x = crop.x - static_cast<double>(area.x);
  const double y = crop.y - static_cast<double>(area.y);
  constexpr double kRounding = 1e-6;
  FLEET_ASSERT(x >= -kRounding && x + crop.width <= static_cast<double>(area.width) + kRounding &&
                   y >= -kRounding &&
                   y + crop.height <= static_cast<double>(area.height) + kRounding,
               format("a crop of {} x {} at ({}, {}) is not in {} x {} pixels", crop.width,
                      crop.height, x, y, area.width, area.height));
  find_taps(x, crop.width, area.width, across_);
  find_taps(y, crop.height, area.height, down_);
  row_.resize(static_cast<size_t>(4 * area.width));
  const auto& kernels = resize_kernels();
  const ResizeTaps across{across_.per_pixel, across_.first.data(), across_.weights.data()};
  const int64_t size = options_.size;
  const int64_t step = options_.channels_last ? 3 : 1;
  for (int64_t i = 0; i < size; ++i) {
    kernels.mix_rows(area.pixels + down_.first[static_cast<size_t>(i)] * area.stride, area.stride,
                     down_.weights.data() + i * down_.per_pixel, down_.per_pixel, 4 * area.width,
                     row_.data());
    float* left = out + i * size * step;
    kernels.mix_columns(row_.data(), across, size, scale_.data(), shift_.data(),
                        {.begin = crop.flip ? left + (size - 1) * step : left,
                         .step = crop.flip ? -step : step,
                         .plane = options_.channels_last ? 1 : size * size});
  }
}

}  // namespace fleet
