// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "fleet/core/model_handle.h"
#include "fleet/train/update/update_report.h"

namespace fleet {

/// Acts after updates and has state that snapshots keep: what a strategy without a place of its own
/// in the update is made of. A row of `strategies()` makes one for a switch of DistributedStrategy;
/// a program attaches its own:
///
///   auto average = std::make_shared<adding::Ema>(net, adding::EmaOptions{.decay = 0.999});
///   optimizer.attach(average);   // before the Snapshots that are to hold it
class UpdateHook {
 public:
  virtual ~UpdateHook() = default;

  /// Unique among the hooks of an optimizer: "ema".
  virtual std::string_view name() const = 0;

  /// After every update, and after local SGD's average where one was due. `report.updated` is false
  /// where nothing was changed (amp). The update is done: what it throws cannot undo that. With
  /// local SGD parameters are the same on all ranks only where `report.synced`.
  virtual void after_update(const UpdateReport& report) = 0;

  /// Kept in snapshots and given to a restarted rank as "ema/<name>", and read back into these
  /// tensors, which have to be the same on all ranks and stay where they are. A number is a tensor
  /// of one element.
  virtual std::vector<NamedTensor> state() { return {}; }
};

}  // namespace fleet
