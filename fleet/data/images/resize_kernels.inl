// SPDX-License-Identifier: Apache-2.0
// The kernels of resize_kernels.h, compiled once per instruction set.
#include "fleet/data/images/resize_kernels.h"

namespace fleet {
namespace {

using Pixel __attribute__((vector_size(16))) = float;

Pixel load(const float* from) {
  Pixel pixel;
  __builtin_memcpy(&pixel, from, sizeof(pixel));
  return pixel;
}

// Whole rows of bytes at a time: the shape that vector units like best.
void mix_rows(const uint8_t* in, int64_t stride, const float* weights, int64_t taps, int64_t count,
              float* __restrict__ out) {
  for (int64_t i = 0; i < count; ++i) out[i] = weights[0] * static_cast<float>(in[i]);
  for (int64_t k = 1; k < taps; ++k) {
    const float weight = weights[k];
    const uint8_t* from = in + k * stride;
    for (int64_t i = 0; i < count; ++i) out[i] += weight * static_cast<float>(from[i]);
  }
}

void mix_columns(const float* in, const ResizeTaps& taps, int64_t size, const float* scale,
                 const float* shift, const ResizeRow& out) {
  const Pixel times = load(scale);
  const Pixel plus = load(shift);
  const float* weights = taps.weights;
  float* to = out.begin;
  for (int64_t x = 0; x < size; ++x, weights += taps.count, to += out.step) {
    const float* from = in + 4 * taps.first[x];
    Pixel sum = weights[0] * load(from);
    for (int64_t k = 1; k < taps.count; ++k) sum += weights[k] * load(from + 4 * k);
    sum = sum * times + plus;
    for (int64_t c = 0; c < 3; ++c) to[c * out.plane] = sum[c];
  }
}

constexpr ResizeKernels kKernels = {mix_rows, mix_columns};

}  // namespace
}  // namespace fleet
