// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

#include "fleet/core/torch/torch_version.h"

namespace fleet::compat {

/// While it lives, ops that this thread calls run as if autocast was off.
class NoAutocastScope {
 public:
  NoAutocastScope() = default;

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

/// LibTorch's ops ("softmax", "conv2d"), each once whatever its overloads, sorted.
std::vector<std::string> op_names();

/// Why the precision of an op of LibTorch cannot be chosen ("it returns a view"); empty when it
/// can.
std::string why_not_castable(const std::string& op);

/// Ops that autocast runs in another precision than its own lists say: each casts its floating
/// arguments, except double ones, to autocast's type (`low`) or to float (`fp32`). Takes names for
/// which `why_not_castable` is empty. The kernels that do it are registered with the dispatcher
/// once per name and stay; they do nothing of their own where no CastRulesScope names their op.
class CastRules {
 public:
  CastRules(const std::vector<std::string>& low, const std::vector<std::string>& fp32);

  enum class Precision : char { kDefault, kLow, kFp32 };
  /// By number of the op, in order of registration; ops behind its end are left alone.
  using Table = std::vector<Precision>;

 private:
  friend class CastRulesScope;
  std::shared_ptr<const Table> table_;  // shared with ops that were recorded: null for no rule
};

/// The rules for this thread.
class CastRulesScope {
 public:
  explicit CastRulesScope(const CastRules& rules);
  ~CastRulesScope();
  CastRulesScope(const CastRulesScope&) = delete;
  CastRulesScope& operator=(const CastRulesScope&) = delete;

 private:
  std::shared_ptr<const CastRules::Table> previous_;
};

/// Whether this thread's rules name an op of LibTorch ("gelu").
bool is_named_by_cast_rules(const std::string& op);

/// This thread's rules, for CallState; null for none.
const std::shared_ptr<const CastRules::Table>& current_cast_rules();
void set_cast_rules(std::shared_ptr<const CastRules::Table> rules);

}  // namespace fleet::compat
