// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

namespace fleet::memory {

/// A tensor does not fit into the memory budget; the machine may well have the bytes.
class BudgetExceeded : public c10::OutOfMemoryError {
 public:
  using c10::OutOfMemoryError::OutOfMemoryError;
};

}  // namespace fleet::memory
