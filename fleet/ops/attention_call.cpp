// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/attention_call.h"

#include <algorithm>
#include <new>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/fused_op.inl"

namespace fleet::ops {

namespace {}  // namespace

Tensor with_dense_heads(const Tensor& x) {
  return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous();
}

KeyLists::KeyLists(const OptionalTensor& mask, const AttentionShape& shape) {
  if (!mask) return;
  const auto seen = mask->to(torch::kBool).contiguous();
  const bool* const bits = seen.const_data_ptr<bool>();
  lists_.resize(static_cast<size_t>(shape.samples));
  for (int64_t n = 0; n < shape.samples; ++n) {
    auto& list = lists_[static_cast<size_t>(n)];
    for (int64_t j = 0; j < shape.keys; ++j) {
      if (bits[n * shape.keys + j]) list.push_back(static_cast<int32_t>(j));
    }
  }
}

AttentionCall::AttentionCall(const Tensor& q, const Tensor& k, const Tensor& v,
                             const OptionalTensor& keys, const OptionalTensor& bias, bool causal,
                             double p, double scale, c10::IntArrayRef counter)
    : shape(q, k),
      stream_(random_stream(p, counter)),
      q_(with_dense_heads(q)),
      k_(with_dense_heads(k)),
      v_(with_dense_heads(v)),
      lists_(keys, shape),
      causal_(causal),
      scale_(scale) {
  if (p > 0 && counter[2] >= (1 << 16)) {
    throw Error("random", format("site {} of an attention, above 65535", counter[2]));
  }
  if (bias) {
    bias_ = bias->to(torch::kFloat).expand({shape.samples, shape.heads, shape.queries, shape.keys});
  }
}

AttentionArgs AttentionCall::args(int64_t sample, int64_t head) const {
  const int64_t kv_head = head / shape.group;
  AttentionArgs a{};
  a.q = row(q_, sample, head);
  a.k = row(k_, sample, kv_head);
  a.v = row(v_, sample, kv_head);
  a.queries = shape.queries;
  a.key_count = a.key_total = shape.keys;
  a.width = shape.width;
  a.q_stride = q_.stride(1);
  a.k_stride = k_.stride(1);
  a.v_stride = v_.stride(1);
  a.causal = causal_;
  a.scale = static_cast<float>(scale_);
  a.sample = stream_.first_sample + static_cast<uint32_t>(sample);
  a.head = static_cast<uint32_t>(head);
  a.stream = &stream_;
  if (bias_.defined()) {
    a.bias = bias_.const_data_ptr<float>() + sample * bias_.stride(0) + head * bias_.stride(1);
    a.bias_stride_q = bias_.stride(2);
    a.bias_stride_k = bias_.stride(3);
  }
  const auto* const list = lists_.of(sample);
  if (list && list->empty()) {
    a.scale = 0;
    a.bias = nullptr;
    a.causal = false;
  } else if (list && std::ssize(*list) < shape.keys) {
    a.keys = list->data();
    a.key_count = std::ssize(*list);
  }
  return a;
}

size_t AttentionCall::kernel() const { return kernel_of(q_); }

void* AttentionCall::row(const Tensor& x, int64_t sample, int64_t head) {
  return static_cast<char*>(const_cast<void*>(x.const_data_ptr())) +
         (sample * x.stride(0) + head * x.stride(2)) * x.element_size();
}

AlignedFloats aligned_floats(int64_t count) {
  const auto bytes = static_cast<size_t>((count * 4 + 63) / 64 * 64);
  auto* const p = static_cast<float*>(std::aligned_alloc(64, std::max<size_t>(bytes, 64)));
  if (p == nullptr) throw std::bad_alloc();
  return AlignedFloats(p);
}

}  // namespace fleet::ops
