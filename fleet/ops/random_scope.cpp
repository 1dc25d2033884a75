// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/random_scope.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "fleet/core/error.h"
#include "fleet/core/parallel_chunks.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/kernels/layer_kernels.h"

namespace fleet::ops {
namespace {

thread_local RandomScope* t_random_scope = nullptr;

constexpr int64_t kWordRange = int64_t{1} << 32;

uint32_t as_word(int64_t value, const char* name) {
  if (value >= 0 && value < kWordRange) return static_cast<uint32_t>(value);
  throw Error("random",
              format("the {} of a random op is {}, outside of 0 ... 2^32 - 1", name, value));
}

// The seed of another stream: SplitMix64's finalizer (Steele et al., OOPSLA 2014).
int64_t mixed(int64_t seed, int64_t with) {
  auto z = static_cast<uint64_t>(seed) + 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(with) + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<int64_t>(z ^ (z >> 31));
}

}  // namespace

RandomScope::RandomScope(const Position& position)
    : position_(position), outer_(std::exchange(t_random_scope, this)) {
  // The complement keeps streams apart from ops that see no samples.
  if (position.stream != 0) position_.seed = mixed(~position.seed, position.stream);
}

RandomScope::~RandomScope() { t_random_scope = outer_; }

RandomCounter next_counter(int64_t samples) {
  if (auto* const scope = t_random_scope) {
    const auto& at = scope->position_;
    scope->samples_ = at.samples > 0 ? at.samples : std::max(scope->samples_, samples);
    // Numbered from the first sample on, rows that are none would meet those of the next
    // micro-batch.
    if (at.samples > 0 && samples != at.samples) {
      return {mixed(at.seed, at.first_sample), at.update, scope->next_site_++, 0};
    }
    return {at.seed, at.update, scope->next_site_++, at.first_sample};
  }
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  const auto seed = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  return {static_cast<int64_t>(seed), 0, 0, 0};
}

int64_t samples_of_forward() { return t_random_scope ? t_random_scope->position_.samples : 0; }

RandomStream random_stream(double p, c10::IntArrayRef counter) {
  if (!(p >= 0 && p <= 1)) {
    throw Error("random", format("dropout probability has to be between 0 and 1, but got {}", p));
  }
  if (counter.size() != 4) {
    throw Error("random", format("the counter of a random op has {} numbers", counter.size()),
                "give seed, update, site and first sample");
  }
  RandomStream stream;
  const auto seed = static_cast<uint64_t>(counter[0]);
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    stream.round_keys[2 * round] = k0;
    stream.round_keys[2 * round + 1] = k1;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  stream.update = as_word(counter[1], "update");
  stream.site = as_word(counter[2], "site");
  stream.first_sample = as_word(counter[3], "first sample");
  stream.threshold = static_cast<uint32_t>(std::lround((1 - p) * 65536));
  stream.scale = stream.threshold > 0 ? static_cast<float>(65536.0 / stream.threshold) : 0.0f;
  return stream;
}

torch::Tensor keep_mask(c10::IntArrayRef sizes, const RandomStream& stream) {
  auto mask = at::empty(sizes, torch::kByte);
  const int64_t samples = sizes.empty() ? 1 : sizes[0];
  if (mask.numel() == 0) return mask;
  const int64_t count = mask.numel() / samples;
  auto* const bytes = mask.mutable_data_ptr<uint8_t>();
  parallel_ranges(samples, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      layer_kernels().keep_bytes(stream, static_cast<uint32_t>(n), 0, count, bytes + n * count);
    }
  });
  return mask;
}

}  // namespace fleet::ops
