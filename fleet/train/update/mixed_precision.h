// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/core/model_handle.h"
#include "fleet/core/parameter_arena.h"
#include "fleet/precision/autocast.h"
#include "fleet/precision/buffer_backup.h"
#include "fleet/precision/grad_scaler.h"
#include "fleet/train/distributed_strategy.h"

namespace fleet {

/// What `strategy.amp` adds to an update: low precision in forward, a loss scale (1 for bf16, which
/// needs none), and an update that is skipped, with the buffers put back, when a gradient is not
/// finite.
class MixedPrecision {
 public:
  MixedPrecision(const ModelHandle& model, const AmpConfigs& configs);

  /// Warns once when this CPU is slower in low precision than in fp32.
  static void warn_if_slow(const AmpConfigs& configs);
  static ArenaOptions arena_options(const DistributedStrategy& strategy);

  const precision::Autocast& autocast() const { return autocast_; }
  GradScaler& scaler() { return scaler_; }
  const GradScaler& scaler() const { return scaler_; }

  void open_window() { buffers_.save(); }
  struct Skipped {
    int64_t update = 0;
    double loss = 0;
    std::string gradient = {};  // the first parameter whose gradient is not finite, if any
    bool is_local = false;      // only this rank skips it
  };
  /// Logs the first skip, and every power of two. Throws when the weights are not finite,
  /// or after too many skips in a row.
  void skip(const ParameterArena& arena, const Skipped& skipped);

 private:
  precision::Autocast autocast_;
  GradScaler scaler_;
  precision::BufferBackup buffers_;
};

}  // namespace fleet
