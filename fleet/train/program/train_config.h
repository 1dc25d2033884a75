// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fleet/core/options/command_line.h"
#include "fleet/core/options/options.h"
#include "fleet/snapshot/snapshot_options.h"
#include "fleet/train/distributed_strategy.h"

namespace fleet {

/// What every training program takes from its command line.
struct TrainConfig {
  double lr = 1e-4;
  double momentum = 0.9;
  double beta1 = 0.9;
  double beta2 = 0.997;
  double epsilon = 1e-9;
  int64_t batch_size = 32;
  int epochs = 1;
  int64_t seed = 1;
  std::string strategy_file = {};  ///< `--strategy`
  std::string memory_budget = {};  ///< switches recompute on, with this budget
  bool plan_only = false;          ///< switches recompute and its `plan_only` on

  SnapshotOptions snapshots = {};
  DistributedStrategy strategy = {};

  bool operator==(const TrainConfig&) const = default;
};

const FieldList& fields_of(const TrainConfig*);

/// What a program that reads every flag but those of an optimizer gives as `ProgramHelp::reads`.
inline const std::vector<std::string> kReadByDefault = {"lr", "batch_size", "epochs", "seed",
                                                        "snapshots"};

/// What the command line needs to know about a program.
struct ProgramHelp {
  std::string about = "trains a model";
  /// Two commands that run, with {} for the program as it was called; made up when empty.
  std::vector<std::string> examples = {};
  /// The fields of TrainConfig that the program reads: only these are flags, so that none is taken
  /// and does nothing. "snapshots" stands for all of SnapshotOptions. The strategy's flags,
  /// `--strategy` and `--plan_only` are there always, since distributed_optimizer reads them.
  ///
  ///   {.reads = {"lr", "momentum", "batch_size", "epochs", "seed", "snapshots"}}
  std::vector<std::string> reads = kReadByDefault;
};

/// Reads the command line, as the guide's `X.parse_train_configs()` does: the fields of TrainConfig
/// that the program reads (ProgramHelp::reads) and, as groups of their own, those of
/// SnapshotOptions
/// (`--snapshot_dir`) and all of the strategy (`--amp`, `--recompute_configs.checkpoints a,b`).
/// A flag that the program does not read is an error which says so.
///
/// `--strategy file.json` replaces `defaults.strategy`; flags win over the file wherever they
/// stand. Mistakes of the line come in one UsageError, mistakes of the file in one Error; `--help`
/// throws HelpRequested: `run_main` makes exit codes of all three.
///
///   int body(int argc, char** argv) {
///     auto config = fleet::parse_train_configs(argc, argv, {.lr = 0.05, .batch_size = 128},
///                                              {.reads = {"lr", "batch_size"}});
///     ...
///   }
///   int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
TrainConfig parse_train_configs(int argc, const char* const* argv, const TrainConfig& defaults = {},
                                const ProgramHelp& help = {});

/// With options of the program's own as the first group: any struct that has `fields_of`. They are
/// set in place, and what they hold before is their default.
///
///   Options own;   // struct Options { std::string data_dir = "data"; };
///   auto config = fleet::parse_train_configs(argc, argv, own, {.lr = 0.05});
TrainConfig parse_train_configs(int argc, const char* const* argv, OptionsRef own,
                                const TrainConfig& defaults = {}, const ProgramHelp& help = {});

/// With several such groups, under titles of their own.
///
///   auto config = fleet::parse_train_configs(argc, argv, {{"Model", model}, {"Run", run}});
TrainConfig parse_train_configs(int argc, const char* const* argv,
                                const std::vector<FlagGroup>& own, const TrainConfig& defaults = {},
                                const ProgramHelp& help = {});

}  // namespace fleet
