// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The loops of the fused layers, over raw pointers, once per instruction set. Ranges of rows are
/// given by the caller, who runs several on as many threads; what a range writes does not depend on
/// how the whole was cut.
///
/// The kernel sources are compiled with flags of their own and include nothing but this file.

namespace fleet::ops {

/// Random numbers of one site (one call of a random op) in one update: Philox4x32-10 (Salmon et
/// al., SC 2011, doi 10.1145/2063384.2063405) with the seed as its key and (element / 8, sample,
/// site, update) as its counter. Each element has 16 bits, and is kept where they are below
/// `threshold`.
///
/// Of the 64 elements of a block, counters 8 b ... 8 b + 7, element 4 i + q has quarter q of words
/// 0 and 1 of counter i, lower halves first, and element 32 + 4 i + q the same of words 2 and 3.
struct RandomStream {
  uint64_t round_keys[20] = {};  // two for each round, of 32 bits each
  uint32_t site = 0;
  uint32_t update = 0;
  uint32_t first_sample = 0;
  uint32_t threshold = 65536;  // of 65536: how many are kept
  float scale = 1;             // of what is kept

  bool drops() const { return threshold < 65536; }
};

enum class Element : int { kFloat, kBfloat16 };

struct DropoutArgs {
  const void* x;
  void* y;
  int64_t sample_size;  // elements of one sample
  const RandomStream* stream;
};

/// y = norm(residual + dropout(x)) over rows of `width`, scaled by `weight` and moved by `bias`.
struct NormArgs {
  const void* x;
  const void* residual;  // null: none
  const float* weight;   // null: 1
  const float* bias;     // null: 0
  void* y;
  void* sum;    // null: not wanted; else residual + dropout(x)
  float* mean;  // null: root mean square instead of the standard deviation
  float* rstd;
  int64_t width;
  int64_t rows_per_sample;
  float eps;
  const RandomStream* stream;
};

struct NormBackwardArgs {
  const void* dy;
  const void* saved;  // y, or the sum
  bool saved_is_output;
  const float* mean;  // null: root mean square
  const float* rstd;
  const float* weight;
  const float* bias;
  void* dresidual;  // null: not wanted
  void* dx;
  float* dweight;  // of this range, added up; null: not wanted
  float* dbias;
  int64_t width;
  int64_t rows_per_sample;
  const RandomStream* stream;
};

/// y = dropout(gelu(x + bias)) over rows of `width`.
struct GeluArgs {
  const void* x;
  const float* bias;  // null: 0
  void* y;            // backward: dy is read from here
  void* dx;           // may be the same memory
  void* recomputed;   // backward: where the forward's y goes; null: not wanted
  float* dbias;       // of this range, added up; null: not wanted
  int64_t width;
  int64_t rows_per_sample;
  bool tanh;  // the approximation
  const RandomStream* stream;
};

/// Attention of one head of queries with its head of keys and values, tile by tile. Rows have
/// `..._stride` elements from one position to the next.
struct AttentionArgs {
  const void* q;
  const void* k;
  const void* v;
  void* out;            // backward: read
  float* lse;           // queries: the logarithm of the softmax's sum, to base 2
  const int32_t* keys;  // which keys may be looked at, ascending; null: all
  const float* bias;    // null: none; added to the scores, [query * bias_stride_q + key * ..._k]
  int64_t bias_stride_q;
  int64_t bias_stride_k;
  int64_t queries;
  int64_t key_count;  // that may be looked at
  int64_t key_total;  // that there are
  int64_t width;      // of a head
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;
  int64_t out_stride;
  int64_t causal_offset;  // query i sees keys up to i + causal_offset; below 0 at i = 0: none
  bool causal;
  float scale;
  uint32_t sample;
  uint32_t head;
  const RandomStream* stream;
  float* scratch;  // attention_scratch(...) floats, 64-byte aligned

  // Backward.
  const void* dout;
  void* dq;
  float* dk;  // key_count x padded width: added up over the queries' heads of one head of keys
  float* dv;
  int64_t dout_stride;
  int64_t dq_stride;
};

/// Rows of logits; their gradient is scale (softmax - target distribution).
struct CrossEntropyArgs {
  const void* logits;
  void* out;  // where the gradient goes: the logits themselves, if you like. With a bias the
              // sums do too, so it is needed without `gradient` as well
  const float* bias;  // null: none; added to every row
  int64_t row_stride;
  int64_t classes;
  const int64_t* labels;
  int64_t ignore_index;
  float smoothing;
  float scale;
  bool gradient;
  float* losses;  // rows
};

/// y = relu(x * scale + shift (+ residual)) over rows of `channels`, and its reverse.
struct BatchNormArgs {
  const void* x;
  const void* residual;  // null: none
  const float* scale;
  const float* shift;
  const float* mean;
  void* y;  // backward: null
  int64_t channels;
  bool relu;

  // Backward: dx = scale * (g - mean_g - (x - mean) slope), where g is dy through the ReLU.
  const void* dy;
  const float* mean_g;
  const float* slope;
  void* dx;
  void* dresidual;  // null: not wanted
};

/// y = silu(gate) * up over rows of `width`.
struct SwigluArgs {
  const void* gate;
  const void* up;
  void* y;
  const void* dy;
  void* dgate;
  void* dup;
  int64_t width;
  int64_t in_stride;
};

/// Pairs (x[i], x[i + half]) of every head are turned by an angle: cos and sin are positions x
/// half.
struct RotaryArgs {
  const void* x;
  void* y;
  const float* cos;
  const float* sin;
  int64_t length;  // positions
  int64_t heads;
  int64_t half;
  int64_t sample_stride;  // of x, in elements; y is contiguous
  int64_t row_stride;
  int64_t head_stride;
  bool reverse;
};

/// c = a b (+ bias), or c += a b: rows x depth times depth x columns of float. Of each pair of
/// strides of a and b one is 1.
struct ProductArgs {
  const float* a;
  int64_t a_row_stride;
  int64_t a_depth_stride;
  const float* b;
  int64_t b_depth_stride;
  int64_t b_column_stride;
  float* panels;      // b packed: `panel_floats(columns, depth)`, 64-byte aligned
  const float* bias;  // null: none; of each column
  float* c;
  int64_t c_stride;  // columns lie side by side
  int64_t columns;
  int64_t depth;
  bool adds;
};

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
