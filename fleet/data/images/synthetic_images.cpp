// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/synthetic_images.h"

#include <algorithm>
#include <array>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/formats/jpeg.h"
#include "fleet/data/split_mix.h"
#include "fleet/io/atomic_file.h"

namespace fleet {
namespace {

// The use of a stream of random numbers: each use has its own.
enum Purpose : int64_t { kPattern = 0x5359, kGrain };

constexpr int64_t kPatches = 4;  // of colour along each side

using Pattern = std::array<double, (kPatches + 1) * (kPatches + 1) * 3>;

Pattern pattern_of(int64_t label) {
  Pattern pattern{};
  SplitMix64 random({kPattern, label});
  for (double& value : pattern) value = 48 + 160 * random.uniform();
  return pattern;
}

// Nearly normal: the sum of four uniform draws, each of variance 1/12.
double grain(SplitMix64& random) {
  const uint64_t draw = random.next();
  double sum = -2;
  for (int part = 0; part < 4; ++part) {
    sum += static_cast<double>(draw >> (16 * part) & 0xFFFF) / 65536;
  }
  return sum * 1.7320508075688772;
}

std::vector<uint8_t> draw_image(const Pattern& pattern, const SyntheticImagesOptions& options,
                                SplitMix64 random) {
  std::vector<uint8_t> pixels;
  pixels.reserve(static_cast<size_t>(3 * options.width * options.height));
  const double light = 0.8 + 0.4 * random.uniform();
  for (int64_t y = 0; y < options.height; ++y) {
    const double v = static_cast<double>(kPatches * y) / static_cast<double>(options.height);
    for (int64_t x = 0; x < options.width; ++x) {
      const double u = static_cast<double>(kPatches * x) / static_cast<double>(options.width);
      const auto i = static_cast<int64_t>(v), j = static_cast<int64_t>(u);
      const double down = v - static_cast<double>(i), across = u - static_cast<double>(j);
      const double noise = options.noise * grain(random);
      for (int64_t c = 0; c < 3; ++c) {
        const auto at = [&](int64_t row, int64_t column) {
          return pattern[static_cast<size_t>(3 * (row * (kPatches + 1) + column) + c)];
        };
        const double above = at(i, j) + across * (at(i, j + 1) - at(i, j));
        const double below = at(i + 1, j) + across * (at(i + 1, j + 1) - at(i + 1, j));
        const double value = light * (above + down * (below - above)) + noise;
        pixels.push_back(static_cast<uint8_t>(std::clamp(value, 0.0, 255.0)));
      }
    }
  }
  return pixels;
}

}  // namespace

void write_synthetic_images(const std::filesystem::path& folder,
                            const SyntheticImagesOptions& options) {
  const auto& o = options;
  if (o.classes < 1 || o.per_class < 1 || o.width < 1 || o.height < 1) {
    throw UsageError("data",
                     format("{} classes of {} images of {} x {} pixels leave nothing to write",
                            o.classes, o.per_class, o.width, o.height),
                     "use 1 or more of each");
  }
  const auto list_path = std::filesystem::path(folder.string() + ".txt");
  std::filesystem::create_directories(folder);
  std::string list;
  for (int64_t label = 0; label < o.classes; ++label) {
    const auto pattern = pattern_of(label);
    const auto class_name = format("class_{:03}", label);
    std::filesystem::create_directories(folder / class_name);
    for (int64_t i = 0; i < o.per_class; ++i) {
      const auto name = format("{}/{:05}.jpg", class_name, i);
      const auto pixels = draw_image(pattern, o, SplitMix64({kGrain, o.seed, label, i}));
      const auto bytes = encode_jpeg(pixels, {.width = o.width, .height = o.height}, 3);
      AtomicFile file(folder / name, "data");
      file.write(bytes.data(), bytes.size());
      file.commit_unsynced();
      list += format("{} {}\n", name, label);
    }
  }
  write_file_atomically(list_path, list,
                        "data");  // last, so that it names no image that is not there
}

}  // namespace fleet
