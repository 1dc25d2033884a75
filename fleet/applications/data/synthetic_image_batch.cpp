// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/data/synthetic_image_batch.h"

#include <vector>

#include <ATen/ops/empty.h>

#include "fleet/data/split_mix.h"

namespace fleet::applications {
namespace {

// What a stream of random numbers is for. Those of BERT and the Transformer are 2 and 3.
constexpr int64_t kPattern = 0, kImage = 1;

// Uniform in [-1, 1).
float colour(SplitMix64& random) {
  return static_cast<float>(random.below(1 << 16)) / (1 << 15) - 1;
}

constexpr int64_t kCells = 8;  // of a pattern, each way

void draw_image(int64_t label, int64_t seed, int64_t index, int64_t size, float* out) {
  SplitMix64 pattern({kPattern, label});
  SplitMix64 noise({kImage, seed, index});
  std::vector<float> cells(kCells * kCells);
  for (int64_t channel = 0; channel < 3; ++channel) {
    for (auto& cell : cells) cell = colour(pattern);
    for (int64_t y = 0; y < size; ++y) {
      for (int64_t x = 0; x < size; ++x) {
        const auto cell = (y * kCells / size) * kCells + x * kCells / size;
        *out++ = cells[static_cast<size_t>(cell)] + colour(noise);
      }
    }
  }
}

}  // namespace

Batch synthetic_image_batch(const SyntheticImages& images, int64_t batch_size, int64_t seed) {
  const auto& [classes, size, device] = images;
  const auto target_type = torch::TensorOptions(torch::kLong);
  if (device.is_meta()) {
    return {torch::empty({batch_size, 3, size, size}, device),
            torch::empty({batch_size}, target_type.device(device))};
  }
  Batch batch{torch::empty({batch_size, 3, size, size}), torch::empty({batch_size}, target_type)};
  for (int64_t i = 0; i < batch_size; ++i) {
    SplitMix64 random({kImage, seed, i, 0});
    const auto label = static_cast<int64_t>(random.below(static_cast<uint64_t>(classes)));
    batch.target.data_ptr<int64_t>()[i] = label;
    draw_image(label, seed, i, size, batch.data.data_ptr<float>() + i * 3 * size * size);
  }
  return {batch.data.to(device), batch.target.to(device)};
}

}  // namespace fleet::applications
