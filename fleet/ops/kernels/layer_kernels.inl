// SPDX-License-Identifier: Apache-2.0
// The kernels of layer_kernels.h, compiled once per instruction set by the sources that include
// this.

#include "fleet/ops/kernels/layer_kernels.h"
// clang-format off
#include "fleet/ops/kernels/vectors.inl"
#include "fleet/ops/kernels/philox.inl"
#include "fleet/ops/kernels/dropout.inl"
#include "fleet/ops/kernels/norm.inl"
#include "fleet/ops/kernels/gelu.inl"
#include "fleet/ops/kernels/attention.inl"
#include "fleet/ops/kernels/cross_entropy.inl"
#include "fleet/ops/kernels/batch_norm.inl"
#include "fleet/ops/kernels/swiglu.inl"
#include "fleet/ops/kernels/rotary.inl"
#include "fleet/ops/kernels/product.inl"
// clang-format on

namespace {

using Bfloat16 = uint16_t;

#if defined(__AVX512F__)
constexpr fleet::ops::ProductKernels kProduct = {.panel_columns = kPanelColumns,
                                                 .panel_floats = product_panel_floats,
                                                 .scratch = product_scratch,
                                                 .pack = pack_panels,
                                                 .rows = product_rows};
#endif

constexpr fleet::ops::LayerKernels kKernels = {
    .name = FLEET_KERNELS_NAME,
    .random_bits = random_bits,
    .keep_bytes = keep_bytes,
    .dropout = {dropout<float>, dropout<Bfloat16>},
    .norm = {norm<float, float>, norm<Bfloat16, Bfloat16>, norm<Bfloat16, float>},
    .norm_backward = {norm_backward<float, float>, norm_backward<Bfloat16, Bfloat16>,
                      norm_backward<Bfloat16, float>},
    .gelu = {gelu<float>, gelu<Bfloat16>},
    .gelu_backward = {gelu_backward<float>, gelu_backward<Bfloat16>},
    .attention_scratch = {attention_scratch, attention_scratch},
    .attention = {attention<float>, attention<Bfloat16>},
    .attention_backward = {attention_backward<float>, attention_backward<Bfloat16>},
    .key_rows = {key_rows<float>, key_rows<Bfloat16>},
    .cross_entropy = {cross_entropy<float>, cross_entropy<Bfloat16>},
    .channel_sums = channel_sums,
    .batch_norm = batch_norm,
    .batch_norm_sums = batch_norm_sums,
    .batch_norm_backward = batch_norm_backward,
    .swiglu = {swiglu<float>, swiglu<Bfloat16>},
    .swiglu_backward = {swiglu_backward<float>, swiglu_backward<Bfloat16>},
    .rotary = {rotary<float>, rotary<Bfloat16>},
#if defined(__AVX512F__)
    .product = &kProduct,
#else
    .product = nullptr,
#endif
};

}  // namespace
