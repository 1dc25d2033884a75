// SPDX-License-Identifier: Apache-2.0
#pragma once

// No public header. Which calls of the ops that FastOps replaces Fleet's kernels take, and with
// what.

#include <array>
#include <cstddef>

#include <torch/types.h>

#include "fleet/ops/fast_ops.h"

namespace c10 {
struct IValue;
}

namespace fleet {

enum class FastOp : size_t {
  kDropout,
  kAttention,
  kGelu,
  kLayerNorm,
  kRmsNorm,
  kCrossEntropy,
  kLinear,
  kAddmm,
  kBmm,
  kMatmul
};

constexpr std::array<const char*, 10> kFastOpNames = {"dropout",  "scaled_dot_product_attention",
                                                      "gelu",     "layer_norm",
                                                      "rms_norm", "cross_entropy_loss",
                                                      "linear",   "addmm",
                                                      "bmm",      "matmul"};

/// What came of a call.
struct FastOpOutcome {
  static FastOpOutcome kept(const char* why) { return {.why = why}; }
  static FastOpOutcome idle() { return {}; }  // nothing to compute: neither replaced nor counted

  torch::Tensor result = {};
  const char* why = nullptr;  // it is LibTorch's: because of its type, device, layout, ...
};

/// What the rules keep in FastOps from one call to the next.
struct FastOpsAccess {
  /// 0 where a query may look, else minus infinity.
  static torch::Tensor bias_of(FastOps& fast, const torch::Tensor& mask, torch::ScalarType type);
  static FastOps::Entry& entry(FastOps& fast, FastOp op) {
    return fast.entries_[static_cast<size_t>(op)];
  }
};

/// `arguments`: all of the op's schema, in its order.
using FastOpRule = FastOpOutcome(FastOps& fast, const c10::IValue* arguments);
FastOpRule replace_dropout;
FastOpRule replace_attention;
FastOpRule replace_gelu;
FastOpRule replace_layer_norm;
FastOpRule replace_rms_norm;
FastOpRule replace_cross_entropy;
FastOpRule replace_linear;
FastOpRule replace_addmm;
FastOpRule replace_matmul;  // bmm too

}  // namespace fleet
