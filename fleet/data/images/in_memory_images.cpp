// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/in_memory_images.h"

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/split_mix.h"

namespace fleet {

InMemoryImages::InMemoryImages(torch::Tensor pixels, torch::Tensor labels,
                               PixelStatistics statistics, Augmentation augmentation)
    : pixels_(std::move(pixels)), labels_(std::move(labels)), augmentation_(augmentation) {
  std::vector<std::string> problems;
  if (pixels_.dim() != 3 || pixels_.scalar_type() != torch::kUInt8) {
    problems.push_back(format("pixels have {} dimensions of type {}, not N x H x W unsigned bytes",
                              pixels_.dim(), torch::toString(pixels_.scalar_type())));
  }
  if (labels_.dim() != 1 || labels_.scalar_type() != torch::kInt64) {
    problems.push_back(format("labels have {} dimensions of type {}, not N int64", labels_.dim(),
                              torch::toString(labels_.scalar_type())));
  }
  if (problems.empty() && pixels_.size(0) != labels_.size(0)) {
    problems.push_back(format("{} images but {} labels", pixels_.size(0), labels_.size(0)));
  }
  if (!(statistics.std > 0)) problems.push_back(format("std is {}, not above 0", statistics.std));
  if (augmentation_.max_shift < 0) {
    problems.push_back(format("max_shift is {}, below 0", augmentation_.max_shift));
  }
  if (!problems.empty()) throw UsageError::all("data", "these images cannot be used", problems);

  pixels_ = pixels_.contiguous();
  labels_ = labels_.contiguous();
  for (size_t byte = 0; byte < normalised_.size(); ++byte) {
    normalised_[byte] = static_cast<float>((byte / 255.0 - statistics.mean) / statistics.std);
  }
}

// Plain loops rather than tensor operations: the loader's thread then starts no thread pool of its
// own beside the one that trains, and an image costs well under a microsecond per kilobyte.
Batch InMemoryImages::get(std::span<const int64_t> indices, int64_t epoch) const {
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t pixels_per_image = pixels_.size(1) * pixels_.size(2);
  Batch batch{torch::empty({count, 1, pixels_.size(1), pixels_.size(2)}, torch::kFloat32),
              torch::empty({count}, torch::kInt64)};
  auto* image = batch.data.data_ptr<float>();
  auto* target = batch.target.data_ptr<int64_t>();
  for (const int64_t index : indices) {
    FLEET_ASSERT(index >= 0 && index < size(), format("sample {} of {}", index, size()));
    write_image(index, epoch, image);
    image += pixels_per_image;
    *target++ = labels_.const_data_ptr<int64_t>()[index];
  }
  return batch;
}

void InMemoryImages::write_image(int64_t index, int64_t epoch, float* out) const {
  const int64_t height = pixels_.size(1);
  const int64_t width = pixels_.size(2);
  const uint8_t* in = pixels_.const_data_ptr<uint8_t>() + index * height * width;

  const int64_t reach = augmentation_.max_shift;
  bool flip = false;
  int64_t down = 0;
  int64_t right = 0;
  if (augmentation_.flip || reach > 0) {
    SplitMix64 random({augmentation_.seed, epoch, index});
    flip = random.below(2) == 1 && augmentation_.flip;
    down = static_cast<int64_t>(random.below(2 * reach + 1)) - reach;
    right = static_cast<int64_t>(random.below(2 * reach + 1)) - reach;
  }
  for (int64_t y = 0; y < height; ++y) {
    const int64_t from_y = y - down;
    const bool row_inside = from_y >= 0 && from_y < height;
    for (int64_t x = 0; x < width; ++x) {
      const int64_t unshifted = x - right;
      const int64_t from_x = flip ? width - 1 - unshifted : unshifted;
      const bool inside = row_inside && from_x >= 0 && from_x < width;
      *out++ = normalised_[inside ? in[from_y * width + from_x] : 0];
    }
  }
}

}  // namespace fleet
