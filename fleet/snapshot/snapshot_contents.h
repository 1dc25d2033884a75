// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fleet/comm/communicator.h"
#include "fleet/core/model_handle.h"
#include "fleet/snapshot/data_position.h"
#include "fleet/snapshot/snapshot_value.h"
#include "fleet/train/distributed_optimizer.h"

namespace fleet {

/// One of several optimizers of a training, with the model that it trains.
struct NamedOptimizer {
  std::string name;
  DistributedOptimizer* optimizer = nullptr;
};

/// A model that no optimizer trains, such as an average of another's weights.
struct NamedModel {
  std::string name;
  ModelHandle model;
};

/// All that one snapshot holds. What it points to must outlive what is made of it. Names are
/// letters, digits, '_' and '-', and stand before the files of what they name.
///
///   fleet::Snapshots snapshots(config.snapshots,
///                              {.optimizers = {{"generator", &g}, {"discriminator", &d}},
///                               .data = train,
///                               .values = {{"best_loss", &best_loss}}});
struct SnapshotContents {
  std::vector<NamedOptimizer> optimizers;
  /// Their parameters are the same on all ranks, unless an optimizer is under local SGD.
  std::vector<NamedModel> models = {};
  DataPosition data = {};
  std::vector<SnapshotValue> values = {};
  /// Called before `values` are read for a snapshot, where they are copies of something else.
  std::function<void()> before_save = {};

  /// One optimizer without a name.
  static SnapshotContents of(DistributedOptimizer& optimizer, const DataPosition& data = {},
                             std::vector<SnapshotValue> values = {});

  bool has_names() const { return !optimizers.front().name.empty(); }
  /// The optimizers', which have the same ranks.
  const std::shared_ptr<comm::Communicator>& comm() const;
  /// The number of the snapshot: updates of all optimizers together, as `attempts` counts them.
  int64_t step() const;
  bool is_in_window() const;
  bool is_stopping() const;
  /// Some optimizer is under local SGD, so that ranks have parameters of their own.
  bool has_local_sgd() const;
  /// "update 12"; "generator's update 12, discriminator's update 60"
  std::string progress() const;

  /// Throws one Error with all that is wrong: names that are empty, taken twice or not fit for a
  /// file, null pointers, optimizers of other ranks.
  void check() const;
};

}  // namespace fleet
