// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/distributed_strategy.h"

#include "fleet/core/options/options_json.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"
#include "fleet/train/local_sgd_options.h"
#include "fleet/train/strategy_overview.h"

namespace fleet {
namespace {

constexpr std::string_view kArea = "strategy";

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

// What both kinds of local SGD have.
template <typename Configs>
FieldList with_averaging(std::vector<Field> fields) {
  fields.push_back(field<&Configs::outer>("outer", "what is made of an average")
                       .one_of(outer_rule_names())
                       .beyond_guide());
  fields.push_back(field<&Configs::outer_lr>("outer_lr", "rate of slow_momentum and nesterov")
                       .above(0)
                       .beyond_guide());
  fields.push_back(
      field<&Configs::outer_momentum>("outer_momentum", "momentum of slow_momentum and nesterov")
          .at_least(0)
          .below(1)
          .beyond_guide());
  fields.push_back(field<&Configs::optimizer_state>(
                       "optimizer_state", "what an average does to the optimizer's momentum")
                       .one_of(state_at_sync_names())
                       .beyond_guide());
  fields.push_back(
      field<&Configs::delayed>("delayed", "average behind the next updates, one interval late")
          .beyond_guide());
  return {.area = kArea, .fields = std::move(fields)};
}

// From the configs of one kind of local SGD to those of the other.
template <typename To, typename From>
void copy_averaging(const From& from, To& to) {
  to.begin_step = from.begin_step;
  to.outer = from.outer;
  to.outer_lr = from.outer_lr;
  to.outer_momentum = from.outer_momentum;
  to.optimizer_state = from.optimizer_state;
  to.delayed = from.delayed;
}

}  // namespace

const FieldList& fields_of(const AmpConfigs*) {
  static const FieldList list{
      .area = kArea,
      .fields =
          {
              field<&AmpConfigs::init_loss_scaling>("init_loss_scaling", "first loss scale")
                  .above(0),
              field<&AmpConfigs::incr_every_n_steps>(
                  "incr_every_n_steps", "the scale grows after so many updates without overflow")
                  .at_least(1)
                  .in_unit("updates"),
              field<&AmpConfigs::decr_every_n_nan_or_inf>(
                  "decr_every_n_nan_or_inf", "the scale shrinks after so many overflows in a row")
                  .at_least(1)
                  .in_unit("updates"),
              field<&AmpConfigs::incr_ratio>("incr_ratio", "factor by which the scale grows")
                  .above(1),
              field<&AmpConfigs::decr_ratio>("decr_ratio", "factor by which the scale shrinks")
                  .above(0)
                  .below(1),
              field<&AmpConfigs::use_dynamic_loss_scaling>("use_dynamic_loss_scaling",
                                                           "let the loss scale grow and shrink"),
              field<&AmpConfigs::custom_white_list>("custom_white_list",
                                                    "further ops that run in low precision")
                  .beyond_guide(),
              field<&AmpConfigs::custom_black_list>("custom_black_list",
                                                    "further ops that stay in fp32")
                  .beyond_guide(),
              field<&AmpConfigs::use_pure_bf16>("use_pure_bf16",
                                                "bf16 parameters with fp32 masters")
                  .beyond_guide(),
              field<&AmpConfigs::dtype>("dtype", "the low precision")
                  .one_of({"bf16", "fp16"})
                  .beyond_guide(),
              field<&AmpConfigs::max_skips_in_a_row>("max_skips_in_a_row",
                                                     "stop after so many skipped updates in a row")
                  .at_least(1)
                  .in_unit("updates")
                  .beyond_guide(),
          },
      .absent = {
          {"custom_black_varnames",
           "Paddle's, for variables of its graph; name ops in custom_black_list"},
          {"use_pure_fp16", "Paddle's; Fleet keeps pure training to bf16: use_pure_bf16"},
          {"use_fp16_guard", "Paddle's, for use_pure_fp16, which Fleet does not have"},
          {"use_optimizer_fp16", "Paddle's; Fleet's optimizers keep their state in fp32"},
      }};
  return list;
}

const FieldList& fields_of(const RecomputeConfigs*) {
  static const FieldList list{
      .area = kArea,
      .fields =
          {
              field<&RecomputeConfigs::checkpoints>("checkpoints",
                                                    "names of the tensors at which the net is cut"),
              field<&RecomputeConfigs::enable_offload>(
                  "enable_offload", "checkpoints leave the device's memory until backward"),
              field<&RecomputeConfigs::checkpoint_shape>(
                  "checkpoint_shape", "shape of a checkpoint; compared when given, never needed")
                  .at_least(1),
              field<&RecomputeConfigs::memory_budget>(
                  "memory_budget",
                  "find the cuts for so much memory: 12GiB, 60% of what this rank may have, or "
                  "\"50% of plain\" training")
                  .beyond_guide(),
              field<&RecomputeConfigs::plan_only>(
                  "plan_only",
                  "print the plan for memory_budget, or what plain training takes, and end")
                  .beyond_guide(),
          },
      .absent = {
          {"enable_tuning", "Paddle's; give a memory_budget, and Fleet searches the cuts"},
          {"refined_ops_patterns", "Paddle's, for patterns of its graph; name checkpoints"},
      }};
  return list;
}

const FieldList& fields_of(const LocalSgdConfigs*) {
  static const FieldList list = with_averaging<LocalSgdConfigs>({
      field<&LocalSgdConfigs::k_steps>("k_steps", "updates between two averages")
          .at_least(1)
          .in_unit("updates"),
      field<&LocalSgdConfigs::begin_step>("begin_step", "synchronous training before this update")
          .at_least(1),
  });
  return list;
}

const FieldList& fields_of(const AdaptiveLocalSgdConfigs*) {
  using C = AdaptiveLocalSgdConfigs;
  static const FieldList list = with_averaging<C>({
      field<&C::init_k_steps>("init_k_steps", "updates before the first average")
          .at_least(1)
          .in_unit("updates"),
      field<&C::begin_step>("begin_step", "synchronous training before this update").at_least(1),
      field<&C::max_k_steps>("max_k_steps", "the interval does not grow beyond")
          .at_least(1)
          .in_unit("updates")
          .beyond_guide(),
      field<&C::formula>("formula", "whose formula chooses the interval")
          .one_of(interval_formula_names())
          .beyond_guide(),
      field<&C::loss_smoothing>("loss_smoothing",
                                "share of the smoothed loss that an update leaves as it is")
          .at_least(0)
          .below(1)
          .beyond_guide(),
  });
  return list;
}

const FieldList& fields_of(const GradientMergeConfigs*) {
  static const FieldList list{
      .area = kArea,
      .fields = {
          field<&GradientMergeConfigs::k_steps>("k_steps",
                                                "micro-batches whose gradients make one update")
              .at_least(1)
              .in_unit("micro-batches"),
          field<&GradientMergeConfigs::avg>("avg", "average the gradients; off: sum them"),
          field<&GradientMergeConfigs::micro_batch_size>(
              "micro_batch_size", "split a batch into micro-batches of this size; 0: into k_steps")
              .at_least(0)
              .in_unit("samples")
              .beyond_guide(),
          field<&GradientMergeConfigs::drop_last>(
              "drop_last",
              "forget a window that the end of an epoch cuts short; off: update with it")
              .beyond_guide(),
      }};
  return list;
}

const FieldList& fields_of(const LarsConfigs*) {
  static const FieldList list{
      .area = kArea,
      .fields = {
          field<&LarsConfigs::lars_coeff>("lars_coeff", "trust coefficient").above(0),
          field<&LarsConfigs::lars_weight_decay>("lars_weight_decay", "weight decay").at_least(0),
          field<&LarsConfigs::epsilon>("epsilon", "added to the norm that divides").at_least(0),
          field<&LarsConfigs::exclude_from_weight_decay>(
              "exclude_from_weight_decay", "parts of names of parameters without weight decay"),
          field<&LarsConfigs::rule>("rule", "whose variant of LARS it is")
              .one_of(optim::lars_rule_names())
              .beyond_guide(),
          field<&LarsConfigs::log_every>("log_every",
                                         "print the trust ratios every so often; 0: never")
              .at_least(0)
              .in_unit("updates")
              .beyond_guide(),
      }};
  return list;
}

const FieldList& fields_of(const LambConfigs*) {
  static const FieldList list{
      .area = kArea,
      .fields = {
          field<&LambConfigs::lamb_weight_decay>("lamb_weight_decay", "weight decay").at_least(0),
          field<&LambConfigs::exclude_from_weight_decay>(
              "exclude_from_weight_decay", "parts of names of parameters without weight decay"),
          field<&LambConfigs::rule>("rule", "whose variant of LAMB it is")
              .one_of(optim::lamb_rule_names())
              .beyond_guide(),
          field<&LambConfigs::log_every>("log_every",
                                         "print the trust ratios every so often; 0: never")
              .at_least(0)
              .in_unit("updates")
              .beyond_guide(),
      }};
  return list;
}

const FieldList& fields_of(const DistributedStrategy*) {
  using S = DistributedStrategy;
  static const FieldList list{
      .area = kArea,
      .fields =
          {
              field<&S::amp>("amp", "mixed precision"),
              field<&S::amp_configs>("amp_configs", ""),
              field<&S::recompute>("recompute", "forward again in backward, for memory"),
              field<&S::recompute_configs>("recompute_configs", ""),
              field<&S::localsgd>("localsgd", "average parameters now and then, not gradients"),
              field<&S::localsgd_configs>("localsgd_configs", ""),
              field<&S::auto_>("auto", "with localsgd: the interval adapts (adaptive_localsgd)"),
              field<&S::gradient_merge>("gradient_merge", "one update from several micro-batches"),
              field<&S::gradient_merge_configs>("gradient_merge_configs", ""),
              field<&S::lars>("lars", "Momentum becomes LARS"),
              field<&S::lars_configs>("lars_configs", ""),
              field<&S::lamb>("lamb", "Adam or AdamW becomes LAMB"),
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
                                                "some parameters get no gradient in some updates"),
              field<&S::straggler_factor>(
                  "straggler_factor", "name a rank that takes so many times the median; 0: none")
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
  save_json(*this, DistributedStrategy{}, file);
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
    strategy.adaptive_localsgd_configs.init_k_steps = localsgd_configs.k_steps;
    copy_averaging(localsgd_configs, strategy.adaptive_localsgd_configs);
    result.notes.push_back(
        format("auto with localsgd is adaptive_localsgd with init_k_steps = {} and begin_step = {}",
               localsgd_configs.k_steps, localsgd_configs.begin_step));
  }
  return result;
}

std::string DistributedStrategy::overview() const { return strategy_overview(resolved().strategy); }

}  // namespace fleet
