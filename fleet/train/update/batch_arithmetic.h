// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fleet {

/// How a program makes an update: `minimize(batch, closure)` splits a batch into micro-batches,
/// calls of `minimize(closure)` accumulate, and so do those of `backward(loss)` before `step()`.
enum class BatchForm { kSplit, kCalls, kBackward };

/// The micro-batches of one update on this rank.
struct WindowSamples {
  int64_t sum = 0;
  int64_t smallest = 0;
  int64_t largest = 0;
  int64_t micro_batches = 0;
  bool is_known = true;  // of every one

  /// One more; 0 samples: not known.
  void add(int64_t samples);
};

/// How the batch of one update comes about.
struct BatchArithmetic {
  BatchForm form = BatchForm::kSplit;
  WindowSamples own = {};                      // of this rank
  std::optional<int64_t> global_samples = {};  // of all ranks; unset: not known
  int64_t k_steps = 1;                         // that the strategy asks for
  int64_t ranks = 1;
  bool is_local = false;  // local SGD: each rank updates with its own samples

  /// In one line, and, where gradient merge is on, what k_steps does in this form: in the guide a
  /// batch of N becomes k_steps x N, `minimize(batch, ...)` splits N.
  ///
  ///   global batch 8192 = micro-batch 256 x 16 accumulated x 2 ranks
  std::string text() const;

 private:
  std::string product() const;
};

}  // namespace fleet
