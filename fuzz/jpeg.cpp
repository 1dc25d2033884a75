// SPDX-License-Identifier: Apache-2.0
// JPEG files as training and testing see them: header, crop, decoded part, scaled.

#include "fleet/data/formats/jpeg.h"

#include <array>
#include <cmath>

#include "fleet/data/images/image_files.h"

#include "fuzz/scratch_file.h"

namespace fleet::fuzz {
namespace {

// Larger ones are only opened: they are allowed, and a header of a few bytes can promise one.
constexpr int64_t kMaxPixels = 1 << 18;
constexpr int64_t kImageSize = 16;

ImagenetOptions options_of(Phase phase) {
  return {.phase = phase,
          .image_size = kImageSize,
          .num_classes = 10,
          .root = scratch_folder(),
          .threads = 1,
          .max_broken_ratio = 1};
}

// The size that a header promises; nothing when there is none.
bool opens(JpegDecoder& decoder, Bytes bytes, JpegDecoder::Size& size) {
  try {
    size = decoder.open(bytes);
  } catch (const BrokenImage& error) {
    require(error.what()[0] != '\0', "a broken image has a reason");
    return false;
  }
  require(size.width > 0 && size.height > 0 && size.width <= 65535 && size.height <= 65535,
          "an image has a size");
  return true;
}

// A part of it, chosen by the input's last byte, at every reduction.
void decode_parts(JpegDecoder& decoder, Bytes bytes, const JpegDecoder::Size& size) {
  for (const int64_t reduction : {1, 2, 4, 8}) {
    const int64_t width = (size.width + reduction - 1) / reduction;
    const int64_t height = (size.height + reduction - 1) / reduction;
    const int64_t x = bytes.back() % width, y = bytes.back() / 16 % height;
    JpegDecoder::Size same;
    require(opens(decoder, bytes, same) && same.width == size.width, "it opens again");
    try {
      const auto area =
          decoder.decode({x, y, (width - x + 1) / 2, (height - y + 1) / 2}, reduction);
      unsigned sum = 0;
      for (int64_t row = 0; row < area.height; ++row)
        for (int64_t i = 0; i < 4 * area.width; ++i) sum += area.pixels[row * area.stride + i];
      require(sum <= 255u * 4 * static_cast<unsigned>(area.width * area.height), "bytes are bytes");
    } catch (const BrokenImage&) {
    }
  }
}

// One file that takes the place of all images of a list.
struct Loader {
  explicit Loader(Phase phase)
      : images(ScratchFile("images.txt").write("input.jpg 3\n"), options_of(phase)) {}
  ImageFiles images;
};

void run(Bytes bytes) {
  static const ScratchFile file("input.jpg");
  static const Loader training(Phase::kTrain), test(Phase::kTest);
  static JpegDecoder decoder;
  JpegDecoder::Size size;
  if (!opens(decoder, bytes, size) || size.width * size.height > kMaxPixels) return;
  decode_parts(decoder, bytes, size);
  file.write(bytes);
  for (const auto* loader : {&training, &test}) {
    constexpr std::array<int64_t, 1> kFirst = {0};
    const auto batch = loader->images.get(kFirst, /*epoch=*/bytes.back());
    require(batch.data.size(0) <= 1 && batch.data.size(0) == batch.target.size(0),
            "an image is there with its label, or neither");
    if (batch.data.size(0) == 0) continue;
    require(batch.data.size(2) == kImageSize && batch.data.size(3) == kImageSize,
            "it has the model's size");
    const auto* pixels = batch.data.const_data_ptr<float>();
    for (int64_t i = 0; i < batch.data.numel(); ++i)
      require(std::isfinite(pixels[i]) && std::abs(pixels[i]) < 10, "pixels are normalised");
  }
}

const Target target("jpeg", run);

}  // namespace
}  // namespace fleet::fuzz
