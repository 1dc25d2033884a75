// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fleet/ops/kernels/kernel_arguments.h"

/// The loops of the fused layers, once per instruction set. Ranges of rows are given by the caller,
/// who runs several on as many threads; what a range writes does not depend on how the whole was
/// cut.
///
/// The kernel sources are compiled with flags of their own and include nothing else.

namespace fleet::ops {

/// Products of float, in two steps: all panels, then rows.
struct ProductKernels {
  int64_t panel_columns;
  int64_t (*panel_floats)(int64_t columns, int64_t depth);
  int64_t (*scratch)();                                          // floats, of each thread
  void (*pack)(const ProductArgs&, int64_t begin, int64_t end);  // panels
  void (*rows)(const ProductArgs&, float* scratch, int64_t begin, int64_t end);
};

template <typename Args>
using RangeKernel = void (*)(const Args&, int64_t begin, int64_t end);

/// The kernels of one instruction set. Pairs are for float and bfloat16.
struct LayerKernels {
  const char* name;
  /// The 64 numbers of a block, of 16 bits each.
  void (*random_bits)(const RandomStream&, uint32_t sample, uint32_t block, uint16_t* out);
  /// One byte per element of a sample, 1: kept.
  void (*keep_bytes)(const RandomStream&, uint32_t sample, int64_t first, int64_t count,
                     uint8_t* out);
  RangeKernel<DropoutArgs> dropout[2];  // samples' blocks of 64 elements
  RangeKernel<NormArgs> norm[3];        // rows; [2]: x is bfloat16, residual and y are float
  RangeKernel<NormBackwardArgs> norm_backward[3];
  RangeKernel<GeluArgs> gelu[2];
  RangeKernel<GeluArgs> gelu_backward[2];
  int64_t (*attention_scratch[2])(int64_t key_count, int64_t width);
  RangeKernel<AttentionArgs> attention[2];           // blocks of 64 queries
  RangeKernel<AttentionArgs> attention_backward[2];  // likewise
  /// Gradients of keys or values, as backward leaves them, to rows of `stride` elements.
  void (*key_rows[2])(const AttentionArgs&, const float* from, int64_t padded, void* to,
                      int64_t stride);
  RangeKernel<CrossEntropyArgs> cross_entropy[2];  // rows
  void (*channel_sums)(const BatchNormArgs&, float* sum, float* square, int64_t begin, int64_t end);
  RangeKernel<BatchNormArgs> batch_norm;  // float, rows
  void (*batch_norm_sums)(const BatchNormArgs&, float* sum, float* product, int64_t begin,
                          int64_t end);
  RangeKernel<BatchNormArgs> batch_norm_backward;
  RangeKernel<SwigluArgs> swiglu[2];
  RangeKernel<SwigluArgs> swiglu_backward[2];
  RangeKernel<RotaryArgs> rotary[2];
  const ProductKernels* product;  // null: LibTorch's are as fast
};

/// For the best instruction set that this CPU has; FLEET_CPU = generic, avx2, avx512 or avx512_bf16
/// picks another.
const LayerKernels& layer_kernels();

/// Null when this build or this CPU lacks it.
const LayerKernels* layer_kernels_for(const char* name);

}  // namespace fleet::ops
