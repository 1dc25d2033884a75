// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/core/options/options.h"

namespace fleet {

// Names and defaults are Paddle's, so that the guide can be followed; what stands after a blank
// line is Fleet's own. Limits, units and meanings are in the field lists of the .cpp, and from
// there in docs/strategy.md.

/// Mixed precision: docs/strategies/amp.md.
struct AmpConfigs {
  float init_loss_scaling = 32768;
  int incr_every_n_steps = 1000;
  int decr_every_n_nan_or_inf = 2;
  float incr_ratio = 2;
  float decr_ratio = 0.8f;
  bool use_dynamic_loss_scaling = true;
  std::vector<std::string> custom_white_list = {};
  std::vector<std::string> custom_black_list = {};
  bool use_pure_bf16 = false;

  std::string dtype = "bf16";
  int max_skips_in_a_row = 50;

  bool operator==(const AmpConfigs&) const = default;
};

/// Recomputation, offload and memory budgets: docs/strategies/recompute.md.
struct RecomputeConfigs {
  std::vector<std::string> checkpoints = {};
  bool enable_offload = false;
  std::vector<int64_t> checkpoint_shape = {};

  std::string memory_budget = {};  ///< "12GiB", "60%", "50% of plain": the cuts are searched for
  bool plan_only = false;          ///< says the plan once it is made, and ends the program

  bool operator==(const RecomputeConfigs&) const = default;
};

/// Local SGD at a fixed interval: docs/strategies/local_sgd.md.
struct LocalSgdConfigs {
  int k_steps = 1;
  int begin_step = 1;

  std::string outer = "average";
  double outer_lr = 1;
  double outer_momentum = 0.5;
  std::string optimizer_state = "local";
  bool delayed = false;

  bool operator==(const LocalSgdConfigs&) const = default;
};

/// Local SGD whose interval adapts: docs/strategies/local_sgd.md.
struct AdaptiveLocalSgdConfigs {
  int init_k_steps = 1;
  int begin_step = 1;

  int max_k_steps = 16;
  std::string formula = "adacomm";
  double loss_smoothing = 0.9;
  std::string outer = "average";
  double outer_lr = 1;
  double outer_momentum = 0.5;
  std::string optimizer_state = "local";
  bool delayed = false;

  bool operator==(const AdaptiveLocalSgdConfigs&) const = default;
};

/// Gradient accumulation: docs/strategies/gradient_merge.md.
struct GradientMergeConfigs {
  int k_steps = 1;
  bool avg = true;

  int64_t micro_batch_size = 0;  ///< 0: the batch is split into k_steps
  bool drop_last = false;

  bool operator==(const GradientMergeConfigs&) const = default;
};

/// LARS over Momentum: docs/strategies/lars.md.
struct LarsConfigs {
  float lars_coeff = 0.001f;
  float lars_weight_decay = 0.0005f;
  float epsilon = 0;
  std::vector<std::string> exclude_from_weight_decay = {};

  std::string rule = "fleet";
  int log_every = 0;

  bool operator==(const LarsConfigs&) const = default;
};

/// LAMB over Adam or AdamW: docs/strategies/lamb.md.
struct LambConfigs {
  float lamb_weight_decay = 0.01f;
  std::vector<std::string> exclude_from_weight_decay = {};

  std::string rule = "fleet";
  int log_every = 0;

  bool operator==(const LambConfigs&) const = default;
};

struct ResolvedStrategy;

/// How a training is spread, merged, scaled and kept in memory: the guide's switches, each with its
/// configs. Plain values: assigning configs replaces them (Paddle appends to their lists). Nothing
/// is checked before `check()` in strategy_check.h, which reports everything at once.
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

const FieldList& fields_of(const AmpConfigs*);
const FieldList& fields_of(const RecomputeConfigs*);
const FieldList& fields_of(const LocalSgdConfigs*);
const FieldList& fields_of(const AdaptiveLocalSgdConfigs*);
const FieldList& fields_of(const GradientMergeConfigs*);
const FieldList& fields_of(const LarsConfigs*);
const FieldList& fields_of(const LambConfigs*);
const FieldList& fields_of(const DistributedStrategy*);

/// The field `amp_configs` for the switch "amp"; null for a field that has no configs.
const Field* configs_of(std::string_view switch_name);

}  // namespace fleet
