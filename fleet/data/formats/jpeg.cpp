// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/formats/jpeg.h"

#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

// From here on Pillow refuses too. A progressive file needs 6 bytes of memory for each.
constexpr int64_t kMaxPixels = 179'000'000;

bool corrupts_pixels(int warning) {
  return warning == JWRN_JPEG_EOF || warning == JWRN_HIT_MARKER || warning == JWRN_HUFF_BAD_CODE ||
         warning == JWRN_MUST_RESYNC;
}

// libjpeg is C: its errors leave by longjmp, to the last `guarded`.
struct JpegErrors {
  jpeg_error_mgr manager{};
  std::jmp_buf failed{};
  std::array<char, JMSG_LENGTH_MAX> message{};

  // `info` must live as long as this.
  template <typename Info>
  void attach(Info& info) {
    info.err = jpeg_std_error(&manager);
    manager.error_exit = fail;
    manager.emit_message = hear;
    info.client_data = this;
  }

  // `work` must not hold what needs a destructor while libjpeg works.
  template <typename Info, typename Work>
  void guarded(Info& info, const Work& work) {
    if (setjmp(failed) != 0) {
      jpeg_abort(reinterpret_cast<j_common_ptr>(&info));
      throw BrokenImage(message.data());
    }
    work();
  }

  [[noreturn]] static void fail(j_common_ptr info) {
    auto& errors = *static_cast<JpegErrors*>(info->client_data);
    errors.manager.format_message(info, errors.message.data());
    std::longjmp(errors.failed, 1);
  }
  static void hear(j_common_ptr info, int level) {
    if (level < 0 && corrupts_pixels(info->err->msg_code)) fail(info);
  }
};

// Adobe stores CMYK inverted; without its marker it is not.
void cmyk_to_rgb(uint8_t* pixels, int64_t count, bool inverted) {
  const int flip = inverted ? 0 : 255;
  for (int64_t i = 0; i < count; ++i, pixels += 4) {
    const int black = pixels[3] ^ flip;
    for (int c = 0; c < 3; ++c)
      pixels[c] = static_cast<uint8_t>(((pixels[c] ^ flip) * black + 127) / 255);
  }
}

}  // namespace

struct JpegDecoder::State : JpegErrors {
  jpeg_decompress_struct info{};
  std::vector<uint8_t> pixels;

  void read_rows(const Part& part, int64_t stride) {
    if (part.y > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(part.y));
    int64_t done = 0;
    while (done < part.height) {
      std::array<JSAMPROW, 4> rows{};
      const int64_t wanted = std::min<int64_t>(std::ssize(rows), part.height - done);
      for (int64_t i = 0; i < wanted; ++i) rows[i] = pixels.data() + (done + i) * stride;
      done += jpeg_read_scanlines(&info, rows.data(), static_cast<JDIMENSION>(wanted));
    }
  }
};

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {
  auto& info = state_->info;
  state_->attach(info);
  state_->guarded(info, [&info] { jpeg_create_decompress(&info); });
}

JpegDecoder::~JpegDecoder() { jpeg_destroy_decompress(&state_->info); }

JpegDecoder::Size JpegDecoder::open(std::span<const uint8_t> bytes) {
  auto& info = state_->info;
  jpeg_abort_decompress(&info);
  if (bytes.empty()) throw BrokenImage("the file is empty");
  state_->guarded(info, [&] {
    jpeg_mem_src(&info, bytes.data(), bytes.size());
    jpeg_read_header(&info, TRUE);
  });
  const Size size{info.image_width, info.image_height};
  if (size.width * size.height > kMaxPixels) {
    throw BrokenImage(format("{} x {} pixels, more than {} million", size.width, size.height,
                             kMaxPixels / 1'000'000));
  }
  return size;
}

PixelArea JpegDecoder::decode(const Part& part, int64_t reduction) {
  auto& info = state_->info;
  const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = cmyk ? JCS_CMYK : JCS_EXT_RGBX;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(reduction);
  state_->guarded(info, [&info] { jpeg_start_decompress(&info); });
  const int64_t width = info.output_width, height = info.output_height;
  FLEET_ASSERT(part.x >= 0 && part.y >= 0 && part.width > 0 && part.height > 0 &&
                   part.x + part.width <= width && part.y + part.height <= height,
               format("{} x {} at ({}, {}) of {} x {}", part.width, part.height, part.x, part.y,
                      width, height));
  // A column more at each side: at the edges of what is decoded, colours are interpolated
  // differently. libjpeg begins at a whole block.
  auto begin = static_cast<JDIMENSION>(std::max<int64_t>(part.x - 1, 0));
  auto columns = static_cast<JDIMENSION>(std::min(part.x + part.width + 1, width) - begin);
  state_->guarded(info, [&] { jpeg_crop_scanline(&info, &begin, &columns); });
  const int64_t stride = int64_t{4} * info.output_width;
  state_->pixels.resize(static_cast<size_t>(stride * part.height));
  state_->guarded(info, [&] { state_->read_rows(part, stride); });
  if (cmyk) cmyk_to_rgb(state_->pixels.data(), stride / 4 * part.height, info.saw_Adobe_marker);
  jpeg_abort_decompress(&info);
  return {.pixels = state_->pixels.data() + 4 * (part.x - begin),
          .stride = stride,
          .x = part.x,
          .y = part.y,
          .width = part.width,
          .height = part.height};
}

std::vector<uint8_t> encode_jpeg(std::span<const uint8_t> pixels, const JpegDecoder::Size& size,
                                 int64_t channels, const JpegOptions& options) {
  const int64_t stride = size.width * channels;
  FLEET_ASSERT(std::ssize(pixels) == stride * size.height,
               format("{} bytes are not {} x {} pixels of {}", pixels.size(), size.width,
                      size.height, channels));
  JpegErrors errors;
  jpeg_compress_struct info{};
  errors.attach(info);
  unsigned char* encoded = nullptr;
  unsigned long length = 0;
  const auto encode = [&] {
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &encoded, &length);
    info.image_width = static_cast<JDIMENSION>(size.width);
    info.image_height = static_cast<JDIMENSION>(size.height);
    info.input_components = static_cast<int>(channels);
    info.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, options.quality, TRUE);
    if (!options.halve_colours)
      info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = 1;
    if (options.progressive) jpeg_simple_progression(&info);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
      auto* row = const_cast<JSAMPROW>(pixels.data() + info.next_scanline * stride);
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
  };
  const auto release = [&](void*) {
    jpeg_destroy_compress(&info);
    std::free(encoded);
  };
  const std::unique_ptr<void, decltype(release)> cleanup(&info, release);
  errors.guarded(info, encode);
  return {encoded, encoded + length};
}

}  // namespace fleet
