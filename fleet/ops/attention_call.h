// SPDX-License-Identifier: Apache-2.0
#pragma once

// No public header. What the attention kernels are called with, made of the op's arguments.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "fleet/ops/kernels/layer_kernels.h"

namespace fleet::ops {

/// Of q and k, samples x positions x heads x width.
struct AttentionShape {
  int64_t samples, queries, heads, width, keys, kv_heads;
  int64_t group;   // heads of queries for one of keys
  int64_t blocks;  // of 64 queries

  AttentionShape(const torch::Tensor& q, const torch::Tensor& k)
      : samples(q.size(0)),
        queries(q.size(1)),
        heads(q.size(2)),
        width(q.size(3)),
        keys(k.size(1)),
        kv_heads(k.size(2)),
        group(kv_heads > 0 ? heads / kv_heads : 1),
        blocks((queries + 63) / 64) {}
};

/// `x` if the elements of each of its heads lie side by side, as the kernels read them; else a
/// copy.
torch::Tensor with_dense_heads(const torch::Tensor& x);

/// Of every sample: the keys that may be looked at. Empty list: all of them, with equal weights.
class KeyLists {
 public:
  KeyLists(const std::optional<torch::Tensor>& mask, const AttentionShape& shape);
  /// Null: no mask.
  const std::vector<int32_t>* of(int64_t sample) const {
    return lists_.empty() ? nullptr : &lists_[static_cast<size_t>(sample)];
  }

 private:
  std::vector<std::vector<int32_t>> lists_;
};

/// Arguments of the kernels for a sample and a head.
class AttentionCall {
 public:
  AttentionCall(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                const std::optional<torch::Tensor>& keys, const std::optional<torch::Tensor>& bias,
                bool causal, double p, double scale, c10::IntArrayRef counter);

  AttentionArgs args(int64_t sample, int64_t head) const;
  /// Which of a pair of kernels.
  size_t kernel() const;

  /// The first row of a head.
  static void* row(const torch::Tensor& x, int64_t sample, int64_t head);

  const AttentionShape shape;

 private:
  RandomStream stream_;
  torch::Tensor q_, k_, v_, bias_;
  KeyLists lists_;
  bool causal_;
  double scale_;
};

struct FreeMemory {
  void operator()(float* p) const { std::free(p); }
};
using AlignedFloats = std::unique_ptr<float[], FreeMemory>;

/// 64-byte aligned, as the kernels need their scratch memory.
AlignedFloats aligned_floats(int64_t count);

}  // namespace fleet::ops
