// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Included by sources that are compiled for other instruction sets than the rest: plain types only,
// so that no inline function of another header is emitted with instructions that a CPU may lack.

namespace fleet {

/// For each output pixel along one axis: `count` input pixels from `first` on, and their weights.
struct ResizeTaps {
  int64_t count;
  const int64_t* first;
  const float* weights;
};

/// Where a row of output pixels goes, in floats: from one to the next, and from one colour to the
/// next.
struct ResizeRow {
  float* begin;
  int64_t step;
  int64_t plane;
};

/// The loops of ImageResize. Pixels are four numbers. Results are the same to the last bit for
/// every instruction set: no product is added without being rounded first.
struct ResizeKernels {
  /// out[i] = sum of weights[k] * in[k * stride + i].
  void (*mix_rows)(const uint8_t* in, int64_t stride, const float* weights, int64_t taps,
                   int64_t count, float* out);
  /// Three colours of each output pixel, times `scale` plus `shift`.
  void (*mix_columns)(const float* in, const ResizeTaps& taps, int64_t size, const float* scale,
                      const float* shift, const ResizeRow& out);
};

/// For the instruction set that the optimizers use (ops/update_kernels.h).
const ResizeKernels& resize_kernels();

extern const ResizeKernels kResizeKernels_generic;
extern const ResizeKernels kResizeKernels_avx2;  // on x86 only

}  // namespace fleet
