// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/image_resize.h"

#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fleet/data/images/resize_kernels.h"
#include "fleet/data/split_mix.h"

#include "tests/data/jpeg_pictures.h"

namespace fleet {
namespace {

using Bytes = std::vector<uint8_t>;

// With the fourth byte that a PixelArea has.
Bytes noise(int64_t width, int64_t height) {
  SplitMix64 random({width, height});
  Bytes pixels(static_cast<size_t>(4 * width * height));
  for (auto& byte : pixels) byte = static_cast<uint8_t>(random.below(256));
  return pixels;
}

PixelArea area_of(const Bytes& pixels, int64_t width, int64_t height) {
  return {.pixels = pixels.data(), .stride = 4 * width, .width = width, .height = height};
}

std::vector<float> resized(const PixelArea& area, const ImageCrop& crop,
                           const ImageResizeOptions& options) {
  std::vector<float> out(static_cast<size_t>(3 * options.size * options.size));
  ImageResize(options).run(area, crop, out.data());
  return out;
}

// The definition, without regard to speed: every input pixel has a weight for every output pixel.
double reference(const PixelArea& area, const ImageCrop& crop, int64_t size, int64_t x, int64_t y,
                 int64_t c) {
  const auto weight = [&](double begin, double extent, int64_t out, int64_t in) {
    const double step = extent / static_cast<double>(size);
    const double centre = begin + (static_cast<double>(out) + 0.5) * step;
    const double distance = std::abs(static_cast<double>(in) + 0.5 - centre);
    return std::max(0.0, 1 - distance / std::max(1.0, step));
  };
  double sum = 0, total = 0;
  for (int64_t i = 0; i < area.height; ++i) {
    const double down = weight(crop.y, crop.height, y, i);
    for (int64_t j = 0; down > 0 && j < area.width; ++j) {
      const double both = down * weight(crop.x, crop.width, x, j);
      sum += both * area.pixels[i * area.stride + 4 * j + c];
      total += both;
    }
  }
  return sum / total / 255;
}

TEST(ImageResizeTest, IsWhatItsDefinitionSays) {
  constexpr int64_t kWidth = 61, kHeight = 47;
  const auto pixels = noise(kWidth, kHeight);
  const auto area = area_of(pixels, kWidth, kHeight);
  const std::vector<ImageCrop> crops = {{0, 0, kWidth, kHeight},
                                        {3, 5, 20, 11},
                                        {40, 30, 7, 5},
                                        {0.25, 1.75, 55.5, 44.125},
                                        {60, 46, 1, 1}};
  for (const auto& crop : crops) {
    for (const int64_t size : {1, 5, 16, 80}) {
      const auto out = resized(area, crop, {.size = size});
      for (int64_t i = 0; i < std::ssize(out); ++i) {
        const int64_t c = i % 3, x = i / 3 % size, y = i / 3 / size;
        ASSERT_NEAR(out[static_cast<size_t>(i)], reference(area, crop, size, x, y, c), 1e-5)
            << crop.width << " x " << crop.height << " to " << size << ": " << x << ", " << y;
      }
    }
  }
}

TEST(ImageResizeTest, NormalisesFlipsAndLaysOut) {
  const auto pixels = noise(30, 20);
  const auto area = area_of(pixels, 30, 20);
  constexpr int64_t kSize = 12;
  ImageCrop crop{.width = 30, .height = 20};
  const auto plain = resized(area, crop, {.size = kSize});
  crop.flip = true;
  const std::array<double, 3> mean = {0.1, 0.2, 0.3}, std = {0.5, 0.25, 2};
  const auto other =
      resized(area, crop, {.size = kSize, .mean = mean, .std = std, .channels_last = false});
  for (int64_t i = 0; i < 3 * kSize * kSize; ++i) {
    const int64_t c = i % 3, x = i / 3 % kSize, y = i / 3 / kSize;
    const auto place = static_cast<size_t>((c * kSize + y) * kSize + kSize - 1 - x);
    const auto n = static_cast<size_t>(c);
    EXPECT_NEAR(other[place], (plain[static_cast<size_t>(i)] - mean[n]) / std[n], 1e-5);
  }
}

#if defined(__x86_64__)
TEST(ImageResizeTest, IsTheSameOnEveryCpu) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this CPU has no AVX2";
  constexpr int64_t kWidth = 37, kTaps = 5, kSize = 29;
  const auto pixels = noise(kWidth, kTaps);
  std::vector<float> weights;
  for (int i = 0; i < kTaps * kSize; ++i) weights.push_back(1.0f / static_cast<float>(3 + i % 17));
  std::vector<int64_t> first;
  for (int64_t i = 0; i < kSize; ++i) first.push_back(i);
  const std::array<float, 4> scale = {0.013f, 0.017f, 0.019f, 0}, shift = {-2.1f, -1.9f, 0.3f, 0};
  std::vector<std::vector<float>> results;
  for (const auto* kernels : {&kResizeKernels_generic, &kResizeKernels_avx2}) {
    std::vector<float> row(4 * kWidth), out(3 * kSize);
    kernels->mix_rows(pixels.data(), 4 * kWidth, weights.data(), kTaps, 4 * kWidth, row.data());
    kernels->mix_columns(row.data(), {kTaps, first.data(), weights.data()}, kSize, scale.data(),
                         shift.data(), {.begin = out.data(), .step = 3, .plane = 1});
    results.push_back(out);
  }
  EXPECT_EQ(results[0], results[1]);
}
#endif

Bytes from_hex(const std::string& text) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

// Made by golden/generate_images.py. Pillow rounds to bytes after each of its two passes.
TEST(ImageResizeTest, GivesThePixelsOfTorchvision) {
  std::ifstream stream(FLEET_IMAGES_FILE);
  const auto golden = nlohmann::json::parse(stream);
  const int64_t size = golden["size"];
  const auto& given = golden["crop"];
  const ImageCrop train{given["left"], given["top"], given["width"], given["height"]};
  for (const auto& item : golden["cases"]) {
    const auto file = from_hex(item["file"]);
    for (const char* phase : {"test", "train"}) {
      JpegDecoder decoder;
      const auto [width, height] = decoder.open(file);
      const bool testing = phase == std::string("test");
      const auto crop = testing ? centre_crop(width, height, golden["short_side"], size) : train;
      const JpegDecoder::Part inside{given["left"], given["top"], given["width"], given["height"]};
      const auto area = decoder.decode(testing ? JpegDecoder::Part{0, 0, width, height} : inside);
      const auto out = resized(area, crop, {.size = size});
      const auto expected = from_hex(item[phase]);
      ASSERT_EQ(out.size(), expected.size());
      double largest = 0;
      for (size_t i = 0; i < out.size(); ++i)
        largest = std::max(largest, std::abs(255.0 * out[i] - expected[i]));
      EXPECT_LT(largest, 1.6) << item["name"] << ", " << phase;
    }
  }
}

}  // namespace
}  // namespace fleet
