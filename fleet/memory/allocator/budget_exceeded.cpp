// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/allocator/budget_exceeded.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <typeinfo>

namespace fleet::memory {

bool tells_of_exceeded_budget(std::string_view text) {
  return text.find(" are live and the budget is ") != std::string_view::npos;
}

void with_budget_errors(const std::function<void()>& work) {
  std::string text;
  try {
    work();
    return;
  } catch (const std::runtime_error& error) {
    // No class of its own: neither Fleet's errors, which may quote it, nor Python's.
    if (typeid(error) != typeid(std::runtime_error)) throw;
    text = error.what();
    if (!tells_of_exceeded_budget(text)) throw;
  }
  throw BudgetExceeded({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
}

}  // namespace fleet::memory
