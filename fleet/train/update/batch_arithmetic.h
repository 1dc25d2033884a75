// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace fleet {

/// Which form of `minimize` a program uses: `minimize(batch, closure)` splits a batch into
/// micro-batches, `minimize(closure)` accumulates calls.
enum class BatchForm { kSplit, kCalls };

/// How the batch of one update comes about.
struct BatchArithmetic {
  BatchForm form = BatchForm::kSplit;
  int64_t samples = 0;         // of this rank; not known with calls
  int64_t global_samples = 0;  // of all ranks
  int64_t micro_batches = 1;   // accumulated on this rank
  int64_t k_steps = 1;         // that the strategy asks for
  int64_t ranks = 1;

  /// In one line, and, where gradient merge is on, what k_steps does in this form: in the guide a
  /// batch of N becomes k_steps x N, `minimize(batch, ...)` splits N.
  ///
  ///   global batch 8192 = micro-batch 256 x 16 accumulated x 2 ranks
  std::string text() const;
};

}  // namespace fleet
