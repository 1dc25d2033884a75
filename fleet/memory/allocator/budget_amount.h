// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fleet/core/process/memory_limit.h"

namespace fleet::memory {

/// A memory budget as users write it:
///
///   "12GiB"          bytes
///   "60%"            of what this rank may have: the memory limit of its process, shared among the
///                    ranks on this host
///   "50% of plain"   of what plain training takes, which is known once a step has been measured
struct BudgetAmount {
  enum class Unit { kBytes, kFractionOfLimit, kFractionOfPlain };

  Unit unit = Unit::kBytes;
  int64_t bytes = 0;    // of kBytes
  double fraction = 0;  // of the others, above 0 and at most 1

  /// Empty if the text is no such amount, or zero, or `lacks_unit`.
  static std::optional<BudgetAmount> parse(std::string_view text);
  /// What to write instead of a text that `parse` does not accept.
  static std::string fix_for(std::string_view text);

  /// In bytes; for a fraction of plain, until that is known: all that the rank may have.
  int64_t of(const MemoryLimit& limit, int ranks_on_host) const;
  /// How `of` is computed: "60% of 16.00 GiB (control group /job) shared by 2 ranks".
  std::string derivation(const MemoryLimit& limit, int ranks_on_host) const;
};

/// A short text like "41.74MiB", rounded up.
std::string budget_text(int64_t bytes);

}  // namespace fleet::memory
