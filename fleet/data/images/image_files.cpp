// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/image_files.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>

#include <ATen/Parallel.h>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/data/formats/jpeg.h"
#include "fleet/data/images/image_crop.h"
#include "fleet/data/images/image_resize.h"

namespace fleet {
namespace {

constexpr int64_t kCropDraws = 0x494D;  // so that these random numbers are no other's
constexpr size_t kNamesInError = 5;
constexpr int64_t kMaxBytes = int64_t{256} << 20;

const ImagenetOptions& checked(const ImagenetOptions& options) {
  std::vector<std::string> problems;
  const auto& o = options;
  if (o.image_size < 1) problems.push_back(format("image_size is {}, below 1", o.image_size));
  if (o.num_classes < 1) problems.push_back(format("num_classes is {}, below 1", o.num_classes));
  if (!(o.min_area > 0 && o.min_area <= 1))
    problems.push_back(format("min_area is {}, not above 0 and at most 1", o.min_area));
  if (o.short_side != 0 && o.short_side < o.image_size) {
    problems.push_back(format("short_side {} is below image_size {}, so there would be no middle",
                              o.short_side, o.image_size));
  }
  for (const double std : o.std) {
    if (!(std > 0)) problems.push_back(format("std is {}, not above 0", std));
  }
  if (o.threads < 0) problems.push_back(format("threads is {}, below 0", o.threads));
  if (!(o.max_broken_ratio >= 0 && o.max_broken_ratio <= 1))
    problems.push_back(format("max_broken_ratio is {}, outside 0..1", o.max_broken_ratio));
  if (!problems.empty())
    throw UsageError::all("data", "images cannot be loaded like this", problems);
  return options;
}

void read_file(const std::filesystem::path& path, std::vector<uint8_t>& bytes) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file) throw BrokenImage(std::strerror(errno));
  std::fseek(file.get(), 0, SEEK_END);
  const int64_t size = std::ftell(file.get());
  if (size < 0 || size > kMaxBytes) throw BrokenImage("not a file of at most 256 MB");
  std::rewind(file.get());
  bytes.resize(static_cast<size_t>(size));
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size())
    throw BrokenImage("cannot be read to its end");
}

int64_t smallest_reduction(const ImageCrop& crop, int64_t size) {
  int64_t reduction = 8;
  while (reduction > 1 &&
         std::min(crop.width, crop.height) < static_cast<double>(size * reduction)) {
    reduction /= 2;
  }
  return reduction;
}

// Pixels that contribute to `crop`, along one axis of `length` pixels.
std::pair<int64_t, int64_t> needed(double begin, double extent, int64_t length, int64_t size,
                                   bool shows_edge) {
  const double reach = shows_edge ? 0 : std::max(1.0, extent / static_cast<double>(size));
  const auto first = static_cast<int64_t>(std::floor(begin - reach));
  const auto last = static_cast<int64_t>(std::ceil(begin + extent + reach));
  return {std::max<int64_t>(first, 0), std::min(last, length)};
}

}  // namespace

// What one thread decodes with.
class ImageFiles::Worker {
 public:
  explicit Worker(const ImagenetOptions& options)
      : options_(options),
        resize_({.size = options.image_size,
                 .mean = options.mean,
                 .std = options.std,
                 .channels_last = options.channels_last}) {}

  void make(const std::filesystem::path& path, int64_t index, int64_t epoch, float* out) {
    read_file(path, bytes_);
    const auto size = decoder_.open(bytes_);
    auto crop = choose_crop(size, index, epoch);
    const int64_t reduction = smallest_reduction(crop, options_.image_size);
    for (double* value : {&crop.x, &crop.y, &crop.width, &crop.height})
      *value /= static_cast<double>(reduction);
    const auto along = [&](double begin, double extent, int64_t length) {
      return needed(begin, extent, (length + reduction - 1) / reduction, options_.image_size,
                    crop.shows_edge);
    };
    const auto [left, right] = along(crop.x, crop.width, size.width);
    const auto [top, bottom] = along(crop.y, crop.height, size.height);
    const auto area = decoder_.decode({left, top, right - left, bottom - top}, reduction);
    resize_.run(area, crop, out);
  }

 private:
  ImageCrop choose_crop(const JpegDecoder::Size& size, int64_t index, int64_t epoch) const {
    const int64_t image_size = options_.image_size;
    if (options_.phase == Phase::kTest) {
      const int64_t short_side =
          options_.short_side > 0 ? options_.short_side : (image_size * 256 + 112) / 224;
      return centre_crop(size.width, size.height, short_side, image_size);
    }
    SplitMix64 random({kCropDraws, options_.seed, epoch, index});
    const bool flip = random.below(2) == 1 && options_.flip;
    auto crop = random_crop(size.width, size.height, options_.min_area, random);
    crop.flip = flip;
    return crop;
  }

  const ImagenetOptions& options_;
  std::vector<uint8_t> bytes_;
  JpegDecoder decoder_;
  ImageResize resize_;
};

ImageFiles::ImageFiles(const std::filesystem::path& list, const ImagenetOptions& options)
    : options_(checked(options)),
      list_(ImageList::load(
          list,
          {.root = options.root, .phase = options.phase, .num_classes = options.num_classes})),
      pool_(options.threads > 0 ? options.threads : at::get_num_threads()) {
  for (int64_t i = 0; i < pool_.threads(); ++i)
    workers_.push_back(std::make_unique<Worker>(options_));
}

ImageFiles::~ImageFiles() = default;

Batch ImageFiles::get(std::span<const int64_t> indices, int64_t epoch) const {
  const auto count = std::ssize(indices);
  const int64_t side = options_.image_size;
  const auto layout =
      options_.channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  const auto images = torch::empty({count, 3, side, side},
                                   torch::TensorOptions(torch::kFloat32).memory_format(layout));
  const auto labels = torch::empty({count}, torch::kInt64);
  auto* out = images.data_ptr<float>();
  const int64_t floats = 3 * side * side;
  std::vector<std::string> problems(indices.size());
  pool_.run(count, [&](int64_t worker, int64_t item) {
    const int64_t index = indices[static_cast<size_t>(item)];
    FLEET_ASSERT(index >= 0 && index < size(), format("sample {} of {}", index, size()));
    try {
      workers_[static_cast<size_t>(worker)]->make(list_.path(index), index, epoch,
                                                  out + item * floats);
    } catch (const BrokenImage& broken) {
      problems[static_cast<size_t>(item)] = broken.what();
    }
  });
  // Broken ones are rare: the others move up.
  int64_t good = 0;
  for (int64_t item = 0; item < count; ++item) {
    const int64_t index = indices[static_cast<size_t>(item)];
    const auto& problem = problems[static_cast<size_t>(item)];
    if (!problem.empty()) {
      report(index, problem);
      continue;
    }
    if (good < item) std::copy_n(out + item * floats, floats, out + good * floats);
    labels.data_ptr<int64_t>()[good++] = list_.label(index);
  }
  return Batch{images, labels}.slice(0, good);
}

int64_t ImageFiles::broken() const {
  std::lock_guard lock(mutex_);
  return std::ssize(broken_);
}

void ImageFiles::report(int64_t index, const std::string& why) const {
  std::lock_guard lock(mutex_);
  if (std::find(broken_.begin(), broken_.end(), index) != broken_.end()) return;
  broken_.push_back(index);
  log::warn_here("data", format("{} is left out: {}", list_.path(index).string(), why));
  const auto most = static_cast<int64_t>(options_.max_broken_ratio * static_cast<double>(size()));
  if (std::ssize(broken_) <= most) return;
  std::vector<std::string> names;
  for (const int64_t each : broken_) {
    if (names.size() < kNamesInError) names.push_back(list_.path(each).string());
  }
  throw Error::all("data",
                   format("broken: {} of {}, more than max_broken_ratio {} allows; among them",
                          broken_.size(), plural(size(), "image"), options_.max_broken_ratio),
                   names, "fetch them again, take them off the list, or raise max_broken_ratio");
}

}  // namespace fleet
