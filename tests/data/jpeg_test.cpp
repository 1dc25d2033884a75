// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/formats/jpeg.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/data/jpeg_pictures.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;
using Bytes = std::vector<uint8_t>;

constexpr int64_t kWidth = 203, kHeight = 131;

// Red, green and blue without the fourth byte.
Bytes decode(const Bytes& file, const JpegDecoder::Part& part, int64_t reduction = 1) {
  JpegDecoder decoder;
  decoder.open(file);
  const auto area = decoder.decode(part, reduction);
  EXPECT_EQ(area.x, part.x);
  EXPECT_EQ(area.y, part.y);
  Bytes pixels;
  for (int64_t y = 0; y < area.height; ++y) {
    for (int64_t x = 0; x < area.width; ++x) {
      const uint8_t* pixel = area.pixels + y * area.stride + 4 * x;
      pixels.insert(pixels.end(), pixel, pixel + 3);
    }
  }
  return pixels;
}

Bytes cut(const Bytes& whole, int64_t width, const JpegDecoder::Part& part) {
  Bytes pixels;
  for (int64_t y = part.y; y < part.y + part.height; ++y) {
    const auto row = whole.begin() + 3 * (y * width + part.x);
    pixels.insert(pixels.end(), row, row + 3 * part.width);
  }
  return pixels;
}

int largest_difference(const Bytes& a, const Bytes& b) {
  EXPECT_EQ(a.size(), b.size());
  int largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

std::string refusal(const Bytes& file) {
  return error_message_of<BrokenImage>([&] {
    JpegDecoder decoder;
    const auto [width, height] = decoder.open(file);
    decoder.decode({.width = width, .height = height});
  });
}

struct Kind {
  const char* name;
  int64_t channels;
  JpegOptions options;
};
const std::vector<Kind> kKinds = {{"halved colours", 3, {}},
                                  {"all colours", 3, {.halve_colours = false}},
                                  {"progressive", 3, {.progressive = true}},
                                  {"grey", 1, {}},
                                  {"cmyk", 4, {}}};

TEST(JpegTest, APartIsThatPartOfTheWhole) {
  for (const auto& kind : kKinds) {
    const auto file = jpeg_of_waves(kWidth, kHeight, kind.channels, kind.options);
    for (const int64_t reduction : {1, 2, 4, 8}) {
      const int64_t width = (kWidth + reduction - 1) / reduction;
      const int64_t height = (kHeight + reduction - 1) / reduction;
      const auto whole = decode(file, {0, 0, width, height}, reduction);
      const std::vector<JpegDecoder::Part> parts = {
          {0, 0, 1, 1},
          {width - 1, height - 1, 1, 1},
          {width / 3, height / 4, width / 2, height / 2},
          {16 / reduction, 16 / reduction, 16 / reduction, 32 / reduction},
          {width / 2, 0, width - width / 2, height}};
      for (const auto& part : parts) {
        EXPECT_EQ(decode(file, part, reduction), cut(whole, width, part))
            << kind.name << ", 1/" << reduction << ", from (" << part.x << ", " << part.y << ")";
      }
    }
  }
}

TEST(JpegTest, GivesBackWhatWasEncoded) {
  const auto pixels = waves(kWidth, kHeight);
  const auto file =
      encode_jpeg(pixels, {kWidth, kHeight}, 3, {.quality = 100, .halve_colours = false});
  EXPECT_LE(largest_difference(decode(file, {0, 0, kWidth, kHeight}), pixels), 4);
}

TEST(JpegTest, MakesGreyAndCmykColours) {
  const auto grey = waves(kWidth, kHeight, 1);
  const auto cmyk = waves(kWidth, kHeight, 4);
  Bytes from_grey, from_cmyk;
  for (size_t i = 0; i < grey.size(); ++i) {
    from_grey.insert(from_grey.end(), 3, grey[i]);
    for (size_t c = 0; c < 3; ++c)
      from_cmyk.push_back(static_cast<uint8_t>(cmyk[4 * i + c] * cmyk[4 * i + 3] / 255));
  }
  const JpegDecoder::Part all{0, 0, kWidth, kHeight};
  const JpegOptions fine{.quality = 100};
  EXPECT_LE(
      largest_difference(decode(encode_jpeg(grey, {kWidth, kHeight}, 1, fine), all), from_grey), 2);
  EXPECT_LE(
      largest_difference(decode(encode_jpeg(cmyk, {kWidth, kHeight}, 4, fine), all), from_cmyk), 4);
}

// Scaling while decoding is close to the mean over the pixels that become one.
TEST(JpegTest, AReducedImageShowsTheMeansOfTheWhole) {
  constexpr int64_t kSide = 128;
  const auto file = jpeg_of_waves(kSide, kSide);
  const auto whole = decode(file, {0, 0, kSide, kSide});
  for (const int64_t reduction : {2, 4, 8}) {
    const int64_t side = kSide / reduction;
    Bytes means;
    for (int64_t y = 0; y < side; ++y) {
      for (int64_t x = 0; x < side; ++x) {
        for (int64_t c = 0; c < 3; ++c) {
          int64_t sum = 0;
          for (int64_t i = 0; i < reduction * reduction; ++i) {
            const int64_t row = y * reduction + i / reduction,
                          column = x * reduction + i % reduction;
            sum += whole[static_cast<size_t>(3 * (row * kSide + column) + c)];
          }
          means.push_back(static_cast<uint8_t>(sum / (reduction * reduction)));
        }
      }
    }
    EXPECT_LE(largest_difference(decode(file, {0, 0, side, side}, reduction), means), 8)
        << reduction;
  }
}

TEST(JpegTest, RefusesAnIncompleteJpeg) {
  auto file = jpeg_of_waves(kWidth, kHeight);
  EXPECT_TRUE(says(refusal({}), "the file is empty"));
  EXPECT_TRUE(says(refusal({'G', 'I', 'F', '8', '9', 'a'}), "Not a JPEG file"));
  for (const bool progressive : {false, true}) {
    auto half = jpeg_of_waves(kWidth, kHeight, 3, {.progressive = progressive});
    half.resize(half.size() / 2);
    EXPECT_TRUE(says(refusal(half), "Premature end")) << progressive;
  }
  file.resize(300);  // amid the header
  EXPECT_TRUE(says(refusal(file), "Premature end"));
}

TEST(JpegTest, SurvivesDamageAnywhere) {
  const auto file = jpeg_of_waves(64, 48);
  JpegDecoder decoder;  // one for all: an image must not harm the next
  int64_t refused = 0;
  for (size_t at = 0; at < file.size(); ++at) {
    auto damaged = file;
    damaged[at] ^= 0xFF;
    try {
      const auto [width, height] = decoder.open(damaged);
      decoder.decode({.width = width, .height = std::min<int64_t>(height, 48)});
    } catch (const BrokenImage&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
  decoder.open(file);
  const auto area = decoder.decode({.width = 64, .height = 48});
  EXPECT_EQ(area.pixels[0], decode(file, {0, 0, 1, 1})[0]);
}

TEST(JpegTest, RefusesAnImageThatWouldFillTheMemory) {
  auto file = jpeg_of_waves(64, 48, 3, {.progressive = true});
  for (size_t i = 0; i + 9 < file.size(); ++i) {
    if (file[i] == 0xFF && file[i + 1] == 0xC2) {  // start of frame: height and width follow
      std::fill_n(file.begin() + static_cast<int64_t>(i) + 5, 4, 0xFD);
      break;
    }
  }
  EXPECT_TRUE(says(refusal(file), "65021 x 65021 pixels, more than 179 million"));
}

}  // namespace
}  // namespace fleet
