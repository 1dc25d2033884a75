// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace fleet {

/// Why an image cannot be had, without its name.
class BrokenImage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Pixels of a part of an image: red, green, blue and a byte of no meaning each.
struct PixelArea {
  const uint8_t* pixels = nullptr;  // of the first row
  int64_t stride = 0;               // bytes from one row to the next
  int64_t x = 0, y = 0;             // where the part begins in the image
  int64_t width = 0, height = 0;
};

/// Decodes parts of JPEG images, with libjpeg-turbo. Its memory is used again for the next image.
///
/// Rows below the part are not read at all, and blocks beside it are not transformed: of a
/// training crop that is a third of the time. Grey and CMYK images come out in colours. Data that
/// libjpeg would replace by grey, because they stop early or are damaged, are a BrokenImage as far
/// as they are looked at.
///
///   JpegDecoder decoder;
///   const auto [width, height] = decoder.open(bytes);
///   const PixelArea half = decoder.decode({.width = width / 2, .height = height / 2}, 2);
class JpegDecoder {
 public:
  struct Size {
    int64_t width = 0, height = 0;
  };
  struct Part {
    int64_t x = 0, y = 0, width = 0, height = 0;
  };

  JpegDecoder();
  ~JpegDecoder();

  /// Reads the header. `bytes` are needed until `decode` is done.
  Size open(std::span<const uint8_t> bytes);

  /// `part` in pixels of the image scaled to 1 / `reduction`, which is 1, 2, 4 or 8 and rounds up.
  /// To be called once per `open`; the area is good until the next one.
  PixelArea decode(const Part& part, int64_t reduction = 1);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct JpegOptions {
  int quality = 90;           ///< 1 to 100
  bool halve_colours = true;  ///< a colour for every 2 x 2 pixels, as photographs mostly have
  bool progressive = false;
};

/// Rows of `width` pixels of 1 (grey), 3 (red, green, blue) or 4 bytes (inverted CMYK: the light
/// left after cyan, magenta, yellow and black, as Adobe's programs write it).
///
///   const auto bytes = encode_jpeg(rgb, {.width = 500, .height = 375}, 3);
std::vector<uint8_t> encode_jpeg(std::span<const uint8_t> pixels, const JpegDecoder::Size& size,
                                 int64_t channels, const JpegOptions& options = {});

}  // namespace fleet
