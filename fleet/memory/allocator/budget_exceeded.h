// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include <c10/util/Exception.h>

namespace fleet::memory {

/// A tensor does not fit into the memory budget; the machine may well have the bytes.
class BudgetExceeded : public c10::OutOfMemoryError {
 public:
  using c10::OutOfMemoryError::OutOfMemoryError;
};

/// Whether it is the text of a BudgetExceeded, or quotes one.
bool tells_of_exceeded_budget(std::string_view text);

/// Calls `work`. Ops of libraries that are built for LibTorch's stable ABI, such as torchvision's,
/// pass errors on as std::runtime_error with their text: one that was a BudgetExceeded is again.
void with_budget_errors(const std::function<void()>& work);

}  // namespace fleet::memory
