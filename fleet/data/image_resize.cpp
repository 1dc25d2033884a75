#include "fleet/data/image_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet {
namespace {

// A pixel of four floats; the compiler maps it to what the CPU has.
using Pixel __attribute__((vector_size(16))) = float;

Pixel load(const float* from) {
  Pixel pixel;
  std::memcpy(&pixel, from, sizeof(pixel));
  return pixel;
}

}  // namespace

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
  taps.per_pixel = std::min(input, static_cast<int64_t>(std::ceil(2 * reach)) + 1);
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
  for (int64_t i = 0; i < options_.size; ++i) {
    mix_rows(area, i);
    mix_columns(i, crop.flip, out);
  }
}

// Rows first: whole rows of bytes at a time, the shape that vector units like best.
void ImageResize::mix_rows(const PixelArea& area, int64_t y) {
  const float* weights = down_.weights.data() + y * down_.per_pixel;
  const uint8_t* in = area.pixels + down_.first[static_cast<size_t>(y)] * area.stride;
  const int64_t count = 4 * area.width;
  float* __restrict__ row = row_.data();
  for (int64_t i = 0; i < count; ++i) row[i] = weights[0] * static_cast<float>(in[i]);
  for (int64_t k = 1; k < down_.per_pixel; ++k) {
    const float weight = weights[k];
    const uint8_t* from = in + k * area.stride;
    if (weight == 0) continue;
    for (int64_t i = 0; i < count; ++i) row[i] += weight * static_cast<float>(from[i]);
  }
}

void ImageResize::mix_columns(int64_t y, bool flip, float* out) const {
  const int64_t size = options_.size;
  const Pixel scale = load(scale_.data());
  const Pixel shift = load(shift_.data());
  const int64_t plane = options_.channels_last ? 1 : size * size;
  const int64_t step = options_.channels_last ? 3 : 1;
  float* row = out + y * size * step;
  const float* weights = across_.weights.data();
  for (int64_t x = 0; x < size; ++x, weights += across_.per_pixel) {
    const float* in = row_.data() + 4 * across_.first[static_cast<size_t>(x)];
    Pixel sum = weights[0] * load(in);
    for (int64_t k = 1; k < across_.per_pixel; ++k) sum += weights[k] * load(in + 4 * k);
    sum = sum * scale + shift;
    float* to = row + (flip ? size - 1 - x : x) * step;
    for (int64_t c = 0; c < 3; ++c) to[c * plane] = sum[c];
  }
}

}  // namespace fleet
