// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/distributed_strategy.h"

#include "fleet/core/options/options_json.h"
#include "fleet/core/text/format.h"
#include "fleet/io/atomic_file.h"
#include "fleet/train/strategy_overview.h"
#include "fleet/train/update/update_hook.h"

namespace fleet {
namespace {

// Paddle's fields that a strategy file may bring along. Fleet has no switch that does nothing, so
// each gets the reason instead.
std::vector<AbsentField> absent_from_paddle() {
  constexpr std::string_view server =
      "Paddle's, for parameter servers; Fleet trains by collective communication only";
  constexpr std::string_view model_parallel =
      "Paddle's, for splitting a model over devices; Fleet is data parallel, and makes room with "
      "recompute and gradient_merge";
  constexpr std::string_view nccl =
      "Paddle's, for NCCL's streams and rings; Fleet launches in one order on every rank and needs "
      "no such setting";
  constexpr std::string_view cudnn =
      "Paddle's, for cuDNN; in LibTorch set at::globalContext() instead";
  constexpr std::string_view graph =
      "Paddle's, for its static graph; Fleet runs eagerly and has no graph to build";
  constexpr std::string_view buckets =
      "Paddle's second way to size a bucket; Fleet sizes them with fuse_grad_size_in_MB alone";
  constexpr std::string_view compression =
      "Paddle's gradient compression, which Fleet does not have; "
      "fp16_allreduce halves the traffic, localsgd divides it";
  constexpr std::string_view scale =
      "Paddle's; Fleet averages over ranks, weighted by samples, always";
  constexpr std::string_view elsewhere = "Paddle's, with no counterpart in Fleet";
  return {
      {"mode", server},
      {"a_sync", server},
      {"a_sync_configs", server},
      {"is_fl_ps_mode", server},
      {"with_coordinator", server},
      {"split_data", server},
      {"pipeline", model_parallel},
      {"pipeline_configs", model_parallel},
      {"sharding", model_parallel},
      {"sharding_configs", model_parallel},
      {"tensor_parallel", model_parallel},
      {"tensor_parallel_configs", model_parallel},
      {"hybrid_configs", model_parallel},
      {"semi_auto", model_parallel},
      {"auto_search", model_parallel},
      {"sync_nccl_allreduce", nccl},
      {"nccl_comm_num", nccl},
      {"use_hierarchical_allreduce", nccl},
      {"hierarchical_allreduce_inter_nranks", nccl},
      {"calc_comm_same_stream", nccl},
      {"heter_ccl_mode", nccl},
      {"cudnn_exhaustive_search", cudnn},
      {"cudnn_batchnorm_spatial_persistent", cudnn},
      {"conv_workspace_size_limit", cudnn},
      {"build_strategy", graph},
      {"execution_strategy", graph},
      {"without_graph_optimization", graph},
      {"fuse_grad_merge", graph},
      {"fuse_grad_size_in_TFLOPS", buckets},
      {"fuse_grad_size_in_num", buckets},
      {"dgc", compression},
      {"dgc_configs", compression},
      {"gradient_scale_configs", scale},
      {"elastic", "Paddle's, where it has no effect; fleetrun --max_restarts restarts a training"},
      {"asp", elsewhere},
      {"qat", elsewhere},
      {"qat_configs", elsewhere},
      {"adam_d2sum", elsewhere},
  };
}

}  // namespace

const std::vector<StrategyEntry>& strategies() {
  static const std::vector<StrategyEntry> entries = {
      {.name = "amp", .check = check_amp},
      {.name = "recompute", .check = check_recompute},
      {.name = "fast_ops", .check = check_fast_ops},
      {.name = "gradient_merge", .check = check_gradient_merge},
      {.name = "lars", .check = check_lars, .make_hook = make_lars_log},
      {.name = "lamb", .check = check_lamb, .make_hook = make_lamb_log},
      {.name = "localsgd", .check = check_local_sgd},
      {.name = "adaptive_localsgd"},  // checked with localsgd
  };
  return entries;
}

const FieldList& fields_of(const DistributedStrategy*) {
  using S = DistributedStrategy;
  static const FieldList list{
      .area = "strategy",
      .fields =
          {
              field<&S::amp>("amp", "mixed precision"),
              field<&S::amp_configs>("amp_configs", ""),
              field<&S::recompute>("recompute",
                                   "recompute activations in backward, to save memory"),
              field<&S::recompute_configs>("recompute_configs", ""),
              field<&S::localsgd>("localsgd",
                                  "average parameters every k_steps updates, not gradients"),
              field<&S::localsgd_configs>("localsgd_configs", ""),
              field<&S::auto_>("auto", "with localsgd: the interval adapts (adaptive_localsgd)"),
              field<&S::gradient_merge>("gradient_merge",
                                        "accumulate the gradients of several micro-batches"),
              field<&S::gradient_merge_configs>("gradient_merge_configs", ""),
              field<&S::lars>("lars", "LARS instead of Momentum"),
              field<&S::lars_configs>("lars_configs", ""),
              field<&S::lamb>("lamb", "LAMB instead of Adam or AdamW"),
              field<&S::lamb_configs>("lamb_configs", ""),
              field<&S::adaptive_localsgd>("adaptive_localsgd",
                                           "local SGD whose interval follows loss and lr"),
              field<&S::adaptive_localsgd_configs>("adaptive_localsgd_configs", ""),
              field<&S::sync_batch_norm>("sync_batch_norm", "batch norm over all ranks"),
              field<&S::fuse_all_reduce_ops>("fuse_all_reduce_ops",
                                             "reduce gradients in few large buckets"),
              field<&S::fuse_grad_size_in_MB>("fuse_grad_size_in_MB", "size of a bucket")
                  .at_least(1)
                  .in_unit("MB"),
              field<&S::fp16_allreduce>("fp16_allreduce", "send gradients as fp16"),
              field<&S::last_comm_group_size_MB>("last_comm_group_size_MB",
                                                 "size of the bucket that backward fills last")
                  .above(0)
                  .in_unit("MB"),
              field<&S::find_unused_parameters>("find_unused_parameters",
                                                "allow parameters without a gradient"),
              field<&S::fast_ops>("fast_ops", "replace LibTorch's ops by Fleet's fused ones")
                  .beyond_guide(),
              field<&S::fast_ops_configs>("fast_ops_configs", ""),
              field<&S::straggler_factor>(
                  "straggler_factor",
                  "report a rank that takes this multiple of the median time; 0: none")
                  .at_least(0)
                  .beyond_guide(),
          },
      .absent = absent_from_paddle()};
  return list;
}

const Field* configs_of(std::string_view switch_name) {
  constexpr std::string_view suffix = "_configs";
  for (const Field& field : fields_of(static_cast<const DistributedStrategy*>(nullptr)).fields) {
    if (field.nested() && field.name.starts_with(switch_name) &&
        field.name.substr(switch_name.size()) == suffix) {
      return &field;
    }
  }
  return nullptr;
}

DistributedStrategy DistributedStrategy::load(const std::string& file) {
  DistributedStrategy strategy;
  load_json(strategy, file);
  return strategy;
}

DistributedStrategy DistributedStrategy::from_json(const std::string& text) {
  DistributedStrategy strategy;
  read_json(strategy, text);
  return strategy;
}

void DistributedStrategy::save(const std::string& file) const {
  write_file_atomically(file, to_json(), "strategy");
}

std::string DistributedStrategy::to_json() const {
  return write_json(*this, DistributedStrategy{});
}

ResolvedStrategy DistributedStrategy::resolved() const {
  ResolvedStrategy result{*this, {}};
  // Both kinds at once contradict each other: left as they are, for check() to refuse.
  if (auto_ && localsgd && !adaptive_localsgd) {
    auto& strategy = result.strategy;
    strategy.auto_ = false;
    strategy.localsgd = false;
    strategy.localsgd_configs = {};
    strategy.adaptive_localsgd = true;
    make_adaptive(localsgd_configs, strategy.adaptive_localsgd_configs);
    result.notes.push_back(
        format("auto with localsgd is adaptive_localsgd with init_k_steps = {} and begin_step = {}",
               localsgd_configs.k_steps, localsgd_configs.begin_step));
  }
  return result;
}

std::string DistributedStrategy::overview() const { return strategy_overview(resolved().strategy); }

}  // namespace fleet
