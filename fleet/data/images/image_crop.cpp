// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/image_crop.h"

#include <algorithm>
#include <cmath>

namespace fleet {
namespace {

constexpr double kMinRatio = 3.0 / 4;
constexpr double kMaxRatio = 4.0 / 3;
constexpr int kTries = 10;

}  // namespace

ImageCrop random_crop(int64_t width, int64_t height, double min_area, SplitMix64& random) {
  const auto between = [&](double low, double high) {
    return low + (high - low) * random.uniform();
  };
  const auto area = static_cast<double>(width) * static_cast<double>(height);
  for (int i = 0; i < kTries; ++i) {
    const double share = area * between(min_area, 1);
    const double ratio = std::exp(between(std::log(kMinRatio), std::log(kMaxRatio)));
    const int64_t w = std::lround(std::sqrt(share * ratio));
    const int64_t h = std::lround(std::sqrt(share / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto x = static_cast<double>(random.below(static_cast<uint64_t>(width - w + 1)));
    const auto y = static_cast<double>(random.below(static_cast<uint64_t>(height - h + 1)));
    return {.x = x, .y = y, .width = static_cast<double>(w), .height = static_cast<double>(h)};
  }
  const int64_t w = std::min(width, std::lround(static_cast<double>(height) * kMaxRatio));
  const int64_t h = std::min(height, std::lround(static_cast<double>(width) / kMinRatio));
  return {.x = std::floor(static_cast<double>(width - w) / 2),
          .y = std::floor(static_cast<double>(height - h) / 2),
          .width = static_cast<double>(w),
          .height = static_cast<double>(h)};
}

ImageCrop centre_crop(int64_t width, int64_t height, int64_t short_side, int64_t size) {
  const int64_t shortest = std::min(width, height);
  // The longer side is rounded down and the margin to the nearest even, as torchvision does.
  const auto along = [&](int64_t length, double& begin, double& extent) {
    const int64_t scaled = length * short_side / shortest;
    const double per_pixel = static_cast<double>(length) / static_cast<double>(scaled);
    begin = std::nearbyint(static_cast<double>(scaled - size) / 2) * per_pixel;
    extent = static_cast<double>(size) * per_pixel;
  };
  ImageCrop crop{.shows_edge = false};
  along(width, crop.x, crop.width);
  along(height, crop.y, crop.height);
  return crop;
}

}  // namespace fleet
