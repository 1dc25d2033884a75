// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>

#include "fleet/ops/fast_ops.h"
#include "fleet/ops/random_scope.h"
#include "fleet/parallel/sync_batch_norm.h"
#include "fleet/precision/autocast.h"
#include "fleet/train/memory/memory_strategy.h"
#include "fleet/train/micro_batch.h"

namespace fleet {

struct TrainingStack;

/// The scopes around one forward: the position of random ops, Fleet's ops in place of LibTorch's,
/// batch norm over all ranks, autocast, the memory budget, the tape. They end in the reverse order.
class ForwardScopes {
 public:
  ForwardScopes(TrainingStack& stack, const MicroBatch& micro_batch);

  /// Before backward: throws what recompute has against the forward.
  void end();
  /// The same where nothing may be thrown; the next `end` throws it.
  void end_noexcept() noexcept;

  int64_t samples() const { return samples_; }
  /// How long it lasted, once it has ended.
  double seconds() const { return seconds_; }

 private:
  void leave();

  TrainingStack& stack_;
  int64_t samples_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double seconds_ = 0;
  std::optional<ops::RandomScope> random_;
  std::optional<FastOpsScope> fast_ops_;
  std::optional<SyncBatchNormScope> sync_batch_norm_;
  std::optional<precision::AutocastScope> autocast_;
  std::optional<MemoryStrategy::Enforced> budget_;
  std::optional<MemoryStrategy::Forward> recorded_;
  std::exception_ptr error_;
};

}  // namespace fleet
