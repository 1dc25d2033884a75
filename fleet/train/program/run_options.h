// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "fleet/core/model_handle.h"
#include "fleet/core/options/options.h"

namespace fleet {

/// What the ready programs take from their command line besides TrainConfig and their model.
///
///   RunOptions run{.log_every = 1};
///   auto config = parse_train_configs(argc, argv, {{"Model", model}, {"Run", run}});
struct RunOptions {
  int64_t log_every = 5;
  int64_t max_updates = 0;  ///< 0: all epochs
  double warmup = 0.1;
  std::string weights = {};
  std::string save = {};

  /// How many updates the run has, if all epochs together have `available`.
  int64_t updates(int64_t available) const;
  /// How many of `updates` lie before the rate's peak.
  int64_t warmup_updates(int64_t updates) const;

  /// Before the optimizer is made: the weights of `--weights`, if any. Sees too that `--save` can
  /// be written, and replaces nothing but weights of an earlier run.
  void load(const ModelHandle& model) const;
  /// At the end, on the first rank that is there: writes those of `--save`, if any.
  void save_weights(const ModelHandle& model) const;
};

const FieldList& fields_of(const RunOptions*);

}  // namespace fleet
