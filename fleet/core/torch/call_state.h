// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

#include "fleet/core/torch/cast_rules.h"

namespace fleet::compat {

/// What an op's work depends on beside its arguments: dispatch keys, grad mode, autocast.
class CallState {
 public:
  static CallState now();
  bool grad_mode() const { return grad_mode_; }

 private:
  friend class CallStateScope;
  c10::impl::LocalDispatchKeySet keys_ = c10::impl::tls_local_dispatch_key_set();
  bool grad_mode_ = true;
  torch::ScalarType cpu_dtype_ = torch::kFloat, cuda_dtype_ = torch::kFloat;
  std::shared_ptr<const CastRules::Table> rules_;
};

/// Brings such a state back, on any thread, with another grad mode if asked; with autocast's cache
/// of casts off, since what it would hold belongs to another time.
class CallStateScope {
 public:
  explicit CallStateScope(const CallState& state, bool grad_mode);
  ~CallStateScope();
  CallStateScope(const CallStateScope&) = delete;
  CallStateScope& operator=(const CallStateScope&) = delete;

 private:
  void set(const CallState& state, bool grad_mode, bool cache);
  CallState before_;
  bool cache_;
};

}  // namespace fleet::compat
