// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fleet/ops/kernels/random_stream.h"

/// What the loops of the fused layers are called with: raw pointers, sizes and strides.

namespace fleet::ops {

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

}  // namespace fleet::ops
