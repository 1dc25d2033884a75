// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "fleet/data/formats/jpeg.h"

namespace fleet {

/// Waves of colour: smooth, and different at every place.
inline std::vector<uint8_t> waves(int64_t width, int64_t height, int64_t channels = 3) {
  std::vector<uint8_t> pixels;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        const double u = static_cast<double>(x), v = static_cast<double>(y);
        const double n = static_cast<double>(c);
        const double value = 127 + 80 * std::sin(u / (9 + n) + n) + 40 * std::cos(v / (13 - 2 * n));
        pixels.push_back(static_cast<uint8_t>(std::clamp(value, 0.0, 255.0)));
      }
    }
  }
  return pixels;
}

inline std::vector<uint8_t> jpeg_of_waves(int64_t width, int64_t height, int64_t channels = 3,
                                          const JpegOptions& options = {}) {
  return encode_jpeg(waves(width, height, channels), {width, height}, channels, options);
}

/// As TemporaryFolder::write takes it.
inline std::string as_text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace fleet
