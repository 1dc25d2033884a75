// SPDX-License-Identifier: Apache-2.0
#pragma once

// No public header: it includes much of LibTorch. What the fused ops share: which tensors have
// kernels, how an op of Fleet is registered and called, and short names.

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "fleet/core/error.h"
#include "fleet/core/op_properties.h"
#include "fleet/core/parallel_chunks.h"
#include "fleet/ops/kernels/layer_kernels.h"
#include "fleet/ops/random_scope.h"

namespace fleet::ops {
namespace {  // of each op's source

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

}  // namespace

/// Whether the kernels take it; others go through LibTorch's ops, which is slower and the same.
inline bool has_kernel(const torch::Tensor& x) {
  return (x.is_cpu() || x.is_meta()) &&
         (x.scalar_type() == torch::kFloat || x.scalar_type() == torch::kBFloat16);
}

/// Which of a pair of kernels.
inline size_t kernel_of(const torch::Tensor& x) { return x.scalar_type() == torch::kFloat ? 0 : 1; }

/// Rows of up to so many elements are one thread's.
inline int64_t rows_per_thread(int64_t width) { return std::max<int64_t>(1, 4096 / (width + 1)); }

/// A small parameter as the kernels read it; undefined stays undefined.
inline torch::Tensor as_floats(const std::optional<torch::Tensor>& x) {
  return x && x->defined() ? x->to(torch::kFloat).contiguous() : torch::Tensor();
}
inline const float* floats_of(const torch::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

/// An argument that may be missing.
inline std::optional<torch::Tensor> if_defined(const torch::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

/// Where an op with dropout `p` draws: where its options say, or next in the forward.
inline RandomCounter counter_of(const std::optional<RandomCounter>& wanted, double p,
                                int64_t samples) {
  if (wanted) return *wanted;
  return p > 0 ? next_counter(samples) : RandomCounter{};
}

/// In the backward of an op that knows no gradient of its gradient.
inline void refuse_second_order(const char* op) {
  if (!at::GradMode::is_enabled()) return;
  throw Error(op, "it has no gradient of a gradient (create_graph)",
              "compute it in double, or with LibTorch's op");
}

/// `work(chunk, begin, end)` over ranges of n, one per thread, and how many there will be: for sums
/// that every thread begins on its own.
inline int64_t range_count(int64_t n, int64_t least) {
  return std::clamp<int64_t>(n / std::max<int64_t>(least, 1), 1, chunk_count());
}
inline void for_ranges(int64_t n, int64_t count,
                       const std::function<void(int64_t, int64_t, int64_t)>& work) {
  parallel_chunks(count, [&](int64_t i) { work(i, n * i / count, n * (i + 1) / count); });
}

/// In autocast's type, for the autocast kernel of an op.
inline torch::Tensor to_autocast_dtype(const torch::Tensor& x) {
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(torch::kCPU), x, torch::kCPU);
}

/// An op of namespace `fleet`, past autograd where the caller is its autograd kernel.
template <typename Signature>
c10::TypedOperatorHandle<Signature> fleet_op(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("fleet::") + name).c_str(), "")
      .typed<Signature>();
}

/// What the dispatcher calls for an op beside its kernel on the CPU.
template <typename Signature>
struct FusedOpFunctions {
  Signature* meta;                // the shapes of its results
  Signature* autograd = nullptr;  // null: a backward, which has no gradient of its own
  Signature* autocast = nullptr;  // null: it is called with the types that come
};

/// Registers an op of namespace `fleet` with LibTorch's dispatcher and with the tape.
///
///   TORCH_LIBRARY_FRAGMENT(fleet, library) {
///     register_fused_op(library, "twice(Tensor x) -> Tensor",
///                       {.randomness = OpProperties::Randomness::kNone}, twice_kernel,
///                       {.meta = twice_meta, .autograd = twice_autograd});
///   }
template <typename Signature>
void register_fused_op(torch::Library& library, const std::string& schema,
                       const OpProperties& properties, Signature* kernel,
                       const std::type_identity_t<FusedOpFunctions<Signature>>& functions) {
  const auto name = schema.substr(0, schema.find('('));
  const auto implement = [&](c10::DispatchKey key, auto&& function) {
    library.impl(name.c_str(), torch::dispatch(key, std::forward<decltype(function)>(function)));
  };
  library.def(schema.c_str());
  implement(c10::DispatchKey::CPU, kernel);
  implement(c10::DispatchKey::Meta, functions.meta);
  if (functions.autograd) {
    implement(c10::DispatchKey::Autograd, functions.autograd);
  } else {
    implement(c10::DispatchKey::Autograd, torch::autograd::autogradNotImplementedFallback());
  }
  if (functions.autocast) implement(c10::DispatchKey::AutocastCPU, functions.autocast);
  register_op("fleet::" + name, properties);
}

}  // namespace fleet::ops
