// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace fleet::memory {

/// What this thread tries while it lives before an allocation that does not fit into the budget
/// throws, once nothing is left to evict. `raise` returns true where the budget is higher now, or
/// throws a BudgetExceeded that says more. The innermost one counts. Destroyed on its own thread.
///
///   LastResortScope last([&] { return plans.exceed(); });
class LastResortScope {
 public:
  explicit LastResortScope(std::function<bool()> raise);
  ~LastResortScope();
  LastResortScope(const LastResortScope&) = delete;
  LastResortScope& operator=(const LastResortScope&) = delete;

  /// For counters: false where this thread has none, or is inside of it.
  static bool raise_budget();

 private:
  std::function<bool()> raise_;
};

}  // namespace fleet::memory
