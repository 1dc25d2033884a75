// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/core/options/options.h"
#include "fleet/train/strategies/amp.h"
#include "fleet/train/strategies/fast_ops.h"
#include "fleet/train/strategies/gradient_merge.h"
#include "fleet/train/strategies/lamb.h"
#include "fleet/train/strategies/lars.h"
#include "fleet/train/strategies/local_sgd.h"
#include "fleet/train/strategies/recompute.h"

namespace fleet {

struct ResolvedStrategy;
struct StrategyCheck;
struct TrainingStack;
class UpdateHook;

/// How a training is spread, merged, scaled and kept in memory: the guide's switches, each with its
/// configs, which are declared in strategies/. Names and defaults are Paddle's, so that the guide
/// can be followed; what stands after a blank line is Fleet's own. Limits, units and meanings are
/// in the field lists of the .cpp files, and from there in docs/strategy.md. Plain values:
/// assigning configs replaces them (Paddle appends to their lists). Nothing is checked before
/// `check()` in strategy_check.h, which reports everything at once.
///
///   DistributedStrategy strategy{.gradient_merge = true, .gradient_merge_configs = {.k_steps =
///   4}}; strategy.fp16_allreduce = true; strategy.save("strategy.json");
///   log::plain(strategy.overview());
// Fields stand in the guide's order, whatever it pads. NOLINTNEXTLINE(*-optin.performance.Padding)
struct DistributedStrategy {
  bool amp = false;
  AmpConfigs amp_configs = {};
  bool recompute = false;
  RecomputeConfigs recompute_configs = {};
  bool localsgd = false;
  LocalSgdConfigs localsgd_configs = {};
  bool auto_ = false;  ///< `auto` in files and flags: with localsgd, its interval adapts
  bool gradient_merge = false;
  GradientMergeConfigs gradient_merge_configs = {};
  bool lars = false;
  LarsConfigs lars_configs = {};
  bool lamb = false;
  LambConfigs lamb_configs = {};
  bool adaptive_localsgd = false;
  AdaptiveLocalSgdConfigs adaptive_localsgd_configs = {};

  bool sync_batch_norm = false;
  bool fuse_all_reduce_ops = true;
  int fuse_grad_size_in_MB = 32;
  bool fp16_allreduce = false;
  float last_comm_group_size_MB = 1;
  bool find_unused_parameters = false;

  bool fast_ops = false;
  FastOpsConfigs fast_ops_configs = {};
  double straggler_factor = 2;  ///< names a rank that takes so many times the others'; 0: none

  bool operator==(const DistributedStrategy&) const = default;

  /// The strategy that a JSON file or text holds; what it does not name has its default.
  static DistributedStrategy load(const std::string& file);
  static DistributedStrategy from_json(const std::string& text);

  /// Only what differs from the defaults; loading it gives an equal strategy.
  void save(const std::string& file) const;
  std::string to_json() const;

  /// The strategy in force: switches that stand for others are replaced by them.
  ResolvedStrategy resolved() const;

  /// The guide's table of the strategy in force, for the start of a run.
  std::string overview() const;
};

/// A strategy in force, and how it differs from the one that was given.
struct ResolvedStrategy {
  DistributedStrategy strategy;
  std::vector<std::string> notes;  ///< a sentence for each thing that was replaced
};

const FieldList& fields_of(const DistributedStrategy*);

/// A strategy as the check and the training see it; one row per strategy. What has a fixed place in
/// the update (amp, recompute, ...) is called there by name.
struct StrategyEntry {
  std::string_view name;  ///< of its switch
  /// Reports combinations without a meaning, whether the switch is on or off; null: none.
  void (*check)(StrategyCheck& check) = nullptr;
  /// What it does after updates, and its state for snapshots; null, or returns null: nothing.
  std::unique_ptr<UpdateHook> (*make_hook)(TrainingStack& stack) = nullptr;
};
/// In the order in which their problems are reported and their hooks are called.
const std::vector<StrategyEntry>& strategies();

/// The field `amp_configs` for the switch "amp"; null for a field that has no configs.
const Field* configs_of(std::string_view switch_name);

}  // namespace fleet
