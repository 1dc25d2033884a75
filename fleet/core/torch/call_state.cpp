// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/torch/call_state.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

namespace fleet::compat {

CallState CallState::now() {
  CallState state;
  state.keys_ = c10::impl::tls_local_dispatch_key_set();
  state.grad_mode_ = at::GradMode::is_enabled();
  state.cpu_dtype_ = at::autocast::get_autocast_dtype(at::kCPU);
  state.cuda_dtype_ = at::autocast::get_autocast_dtype(at::kCUDA);
  state.rules_ = current_cast_rules();
  return state;
}

CallStateScope::CallStateScope(const CallState& state, bool grad_mode)
    : before_(CallState::now()), cache_(at::autocast::is_autocast_cache_enabled()) {
  set(state, grad_mode, /*cache=*/false);
}

CallStateScope::~CallStateScope() { set(before_, before_.grad_mode_, cache_); }

void CallStateScope::set(const CallState& state, bool grad_mode, bool cache) {
  c10::impl::_force_tls_local_dispatch_key_set(state.keys_);
  at::GradMode::set_enabled(grad_mode);
  at::autocast::set_autocast_dtype(at::kCPU, state.cpu_dtype_);
  at::autocast::set_autocast_dtype(at::kCUDA, state.cuda_dtype_);
  at::autocast::set_autocast_cache_enabled(cache);
  set_cast_rules(state.rules_);
}

}  // namespace fleet::compat
