// SPDX-License-Identifier: Apache-2.0
// Where FastOps meets the dispatcher: the scope of a thread, and the kernels that ask the rules.
#include <utility>

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include "fleet/core/torch/cast_rules.h"
#include "fleet/ops/fast_op_rules.h"
#include "fleet/ops/fast_ops.h"

namespace fleet {
namespace {

struct ThreadFastOps {
  FastOps* ops = nullptr;
  int backward = -1;  // the one in which the scope began
};
thread_local ThreadFastOps t_fast;

// Checkpointing by saved-tensor hooks, or by a function whose forward runs without gradients, runs
// the forward again in backward: there nothing would be replaced, and masks would be others.
FastOps* active() {
  if (!t_fast.ops || !at::GradMode::is_enabled()) return nullptr;
  if (compat::runs_foreign_ops(t_fast.backward)) return nullptr;
  if (at::SavedTensorDefaultHooks::is_enabled() &&
      !at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) {
    return nullptr;
  }
  return t_fast.ops;
}

template <FastOp kOp, FastOpRule* Replace>
void replaced(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto* const fast = active();
  if (!fast || FastOpsAccess::entry(*fast, kOp).is_excluded ||
      compat::is_named_by_cast_rules(kFastOpNames[static_cast<size_t>(kOp)])) {
    return compat::call_intercepted(op, keys, stack);
  }
  const size_t count = op.schema().arguments().size();
  auto outcome = Replace(*fast, stack->data() + (stack->size() - count));
  auto& entry = FastOpsAccess::entry(*fast, kOp);
  if (outcome.result.defined()) {
    ++entry.replaced;
    stack->resize(stack->size() - count);
    stack->emplace_back(std::move(outcome.result));
    return;
  }
  if (outcome.why) {
    ++entry.kept;
    entry.why = outcome.why;
  }
  compat::call_intercepted(op, keys, stack);
}

}  // namespace

FastOpsScope::FastOpsScope(FastOps* ops) : ops_(ops) {
  if (!ops_) return;
  outer_ = std::exchange(t_fast.ops, ops_);
  outer_backward_ = std::exchange(t_fast.backward, compat::current_backward());
  intercept_.emplace();
}

FastOpsScope::~FastOpsScope() {
  if (!ops_) return;
  ops_->mask_ = ops_->bias_ = torch::Tensor();
  t_fast.ops = outer_;
  t_fast.backward = outer_backward_;
}

}  // namespace fleet

TORCH_LIBRARY_IMPL(aten, FLEET_INTERCEPT_KEY, library) {
  using namespace fleet;  // NOLINT
  using enum FastOp;
  const auto add = [&](FastOp op, auto kernel) {
    library.impl(kFastOpNames[static_cast<size_t>(op)], std::move(kernel));
  };
  add(kDropout, torch::CppFunction::makeFromBoxedFunction<&replaced<kDropout, replace_dropout>>());
  add(kAttention,
      torch::CppFunction::makeFromBoxedFunction<&replaced<kAttention, replace_attention>>());
  add(kGelu, torch::CppFunction::makeFromBoxedFunction<&replaced<kGelu, replace_gelu>>());
  add(kLayerNorm,
      torch::CppFunction::makeFromBoxedFunction<&replaced<kLayerNorm, replace_layer_norm>>());
  add(kRmsNorm, torch::CppFunction::makeFromBoxedFunction<&replaced<kRmsNorm, replace_rms_norm>>());
  add(kCrossEntropy,
      torch::CppFunction::makeFromBoxedFunction<&replaced<kCrossEntropy, replace_cross_entropy>>());
  add(kLinear, torch::CppFunction::makeFromBoxedFunction<&replaced<kLinear, replace_linear>>());
  add(kAddmm, torch::CppFunction::makeFromBoxedFunction<&replaced<kAddmm, replace_addmm>>());
  add(kBmm, torch::CppFunction::makeFromBoxedFunction<&replaced<kBmm, replace_matmul>>());
  add(kMatmul, torch::CppFunction::makeFromBoxedFunction<&replaced<kMatmul, replace_matmul>>());
}
