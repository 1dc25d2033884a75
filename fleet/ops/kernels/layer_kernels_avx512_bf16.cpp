// SPDX-License-Identifier: Apache-2.0
// The kernels for bfloat16 on CPUs with AVX512_BF16; those for float are the ones of AVX-512.
#include "fleet/ops/kernels/layer_kernels.h"
// clang-format off
#include "fleet/ops/kernels/vectors.inl"
#include "fleet/ops/kernels/philox.inl"
#include "fleet/ops/kernels/dropout.inl"
#include "fleet/ops/kernels/norm.inl"
#include "fleet/ops/kernels/gelu.inl"
#include "fleet/ops/kernels/attention.inl"
#include "fleet/ops/kernels/attention_bf16.inl"
#include "fleet/ops/kernels/cross_entropy.inl"
#include "fleet/ops/kernels/swiglu.inl"
#include "fleet/ops/kernels/rotary.inl"
// clang-format on

namespace fleet::ops {

LayerKernels with_avx512_bf16(LayerKernels kernels);

LayerKernels with_avx512_bf16(LayerKernels kernels) {
  using Bfloat16 = uint16_t;
  kernels.name = "avx512_bf16";
  kernels.dropout[1] = dropout<Bfloat16>;
  kernels.norm[1] = norm<Bfloat16, Bfloat16>;
  kernels.norm[2] = norm<Bfloat16, float>;
  kernels.norm_backward[1] = norm_backward<Bfloat16, Bfloat16>;
  kernels.norm_backward[2] = norm_backward<Bfloat16, float>;
  kernels.gelu[1] = gelu<Bfloat16>;
  kernels.gelu_backward[1] = gelu_backward<Bfloat16>;
  kernels.attention_scratch[1] = attention_scratch_bf16;
  kernels.attention[1] = attention_bf16;
  kernels.attention_backward[1] = attention_backward_bf16;
  kernels.key_rows[1] = key_rows<Bfloat16>;
  kernels.cross_entropy[1] = cross_entropy<Bfloat16>;
  kernels.swiglu[1] = swiglu<Bfloat16>;
  kernels.swiglu_backward[1] = swiglu_backward<Bfloat16>;
  kernels.rotary[1] = rotary<Bfloat16>;
  return kernels;
}

}  // namespace fleet::ops
