// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategy_check.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "fleet/core/error.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_amount.h"
#include "fleet/train/layer_wise_optimizer.h"

namespace fleet {
namespace {

class Check {
 public:
  Check(const DistributedStrategy& asked, const CheckContext& context)
      : asked_(asked),
        resolved_(asked.resolved()),
        strategy_(resolved_.strategy),
        context_(context) {}

  void run() {
    problems = out_of_limits(asked_);
    remarks = resolved_.notes;
    amp();
    recompute();
    gradient_merge();
    layer_wise_rates();
    local_sgd();
    communication();
    unused_configs();
  }

  std::vector<std::string> problems;
  std::vector<std::string> remarks;

 private:
  void problem(std::string text) { problems.push_back(std::move(text)); }
  void remark(std::string text) { remarks.push_back(std::move(text)); }

  void amp() {
    const auto& configs = strategy_.amp_configs;
    const std::set<std::string> white(configs.custom_white_list.begin(),
                                      configs.custom_white_list.end());
    for (const auto& op : configs.custom_black_list) {
      if (white.contains(op)) {
        problem(
            format("amp_configs: '{}' is in custom_white_list and in custom_black_list, so its "
                   "precision is not decided; take it out of one",
                   op));
      }
    }
    if (configs.use_pure_bf16 && configs.dtype == "fp16") {
      problem(
          "amp_configs: use_pure_bf16 keeps bf16 parameters, but dtype is fp16; set dtype to "
          "bf16");
    }
    if (strategy_.amp && configs.dtype == "bf16") {
      const AmpConfigs defaults;
      if (configs.init_loss_scaling != defaults.init_loss_scaling ||
          configs.use_dynamic_loss_scaling != defaults.use_dynamic_loss_scaling) {
        remark(
            "amp_configs: the loss is scaled for fp16 only; bf16 has the range of fp32 and needs "
            "no loss scale");
      }
    }
  }

  void recompute() {
    const auto& configs = strategy_.recompute_configs;
    const bool named = !configs.checkpoints.empty();
    const bool searched = !configs.memory_budget.empty();
    if (strategy_.recompute && !named && !searched && !configs.plan_only) {
      problem(
          "recompute has nowhere to cut the net: name tensors in recompute_configs.checkpoints, "
          "or give recompute_configs.memory_budget and the cuts are searched for");
    }
    if (named && searched) {
      problem(
          "recompute_configs.checkpoints says where to cut, recompute_configs.memory_budget "
          "asks to search for it; give one of them");
    }
    if (searched && !memory::BudgetAmount::parse(configs.memory_budget)) {
      problem(
          format("recompute_configs.memory_budget: '{}' is no amount of memory; write a size "
                 "like 12GiB, a share of what this rank may have like 60%, or a share of what "
                 "plain training takes like \"50% of plain\"",
                 configs.memory_budget));
    }
    if (configs.enable_offload && !strategy_.recompute) {
      problem(
          "recompute_configs.enable_offload sends checkpoints out, and without recompute there "
          "are none; switch recompute on too");
    }
    if (!configs.checkpoint_shape.empty() && strategy_.recompute && !configs.enable_offload) {
      remark("recompute_configs.checkpoint_shape is only looked at with enable_offload");
    }
    std::set<std::string> seen;
    for (const auto& name : configs.checkpoints) {
      if (!seen.insert(name).second) {
        problem(format("recompute_configs.checkpoints: '{}' is named twice", name));
      }
    }
  }

  void gradient_merge() {
    const auto& configs = strategy_.gradient_merge_configs;
    if (configs.k_steps > 1 && configs.micro_batch_size > 0) {
      problem(
          format("gradient_merge_configs: k_steps = {} says how many micro-batches a batch has, "
                 "micro_batch_size = {} how large they are; give one of them",
                 configs.k_steps, configs.micro_batch_size));
    }
    if (strategy_.gradient_merge && configs.k_steps == 1 && configs.micro_batch_size == 0) {
      const bool is_planned =
          strategy_.recompute && !strategy_.recompute_configs.memory_budget.empty();
      remark(is_planned
                 ? "gradient_merge leaves the size of micro-batches to the plan for memory_budget"
                 : "gradient_merge with k_steps = 1 merges nothing: every batch is an update");
    }
  }

  void layer_wise_rates() {
    if (strategy_.lars && strategy_.lamb) {
      problem(
          "lars and lamb are two update rules for the same parameters; choose lars (over "
          "Momentum) or lamb (over Adam or AdamW)");
    }
    const auto& optimizer = context_.optimizer_name;
    if (optimizer.empty()) return;
    if (strategy_.lars && optimizer != "Momentum") {
      problem(
          format("lars is built on Momentum, but the optimizer is {}; use Momentum with its lr "
                 "and momentum, or switch lars off",
                 optimizer));
    }
    if (strategy_.lamb && optimizer != "Adam" && optimizer != "AdamW") {
      problem(
          format("lamb is built on Adam or AdamW, but the optimizer is {}; use one of those with "
                 "its lr and betas, or switch lamb off",
                 optimizer));
    }
    if (strategy_.lamb && optimizer == "AdamW") {
      lamb_over_adamw();
    } else if ((strategy_.lars || strategy_.lamb) && context_.weight_decay != 0) {
      problem(
          format("{}'s own weight_decay of {} would be added to {}_weight_decay; set it to 0 and "
                 "give {}_configs.{}_weight_decay",
                 optimizer, context_.weight_decay, strategy_.lars ? "lars" : "lamb",
                 strategy_.lars ? "lars" : "lamb", strategy_.lars ? "lars" : "lamb"));
    }
  }

  void lamb_over_adamw() {
    const double own = context_.weight_decay;
    const double configured = strategy_.lamb_configs.lamb_weight_decay;
    switch (lamb_decay(own, strategy_.lamb_configs)) {
      case LambDecay::kAdamW:
        remark(format("lamb takes over AdamW's weight_decay of {}", own));
        break;
      case LambDecay::kConfigs:
        remark(
            format("lamb decays by lamb_weight_decay = {}; AdamW's default of {} is not in force",
                   configured, own));
        break;
      case LambDecay::kConflict:
        problem(
            format("AdamW's weight_decay is {} and lamb_configs.lamb_weight_decay is {}; LAMB has "
                   "one decay: set one of them",
                   own, configured));
    }
  }

  // Paddle asks for SGD or Momentum here. Averaging parameters makes sense over any update rule
  // (with Adam inside it is DiLoCo's), so the optimizer is not looked at.
  void local_sgd() {
    if (asked_.auto_ && !asked_.localsgd) {
      problem(asked_.adaptive_localsgd
                  ? "auto makes localsgd adaptive, and adaptive_localsgd is so already; leave auto "
                    "off"
                  : "auto makes localsgd adaptive, and localsgd is off; switch localsgd on, or "
                    "auto off (Paddle's automatic parallelism, of the same name, is not in Fleet)");
    }
    if (strategy_.localsgd && strategy_.adaptive_localsgd) {
      problem(
          "localsgd averages at a fixed interval, adaptive_localsgd at one that it chooses; "
          "switch one of them off");
    }
    if (!strategy_.localsgd && !strategy_.adaptive_localsgd) {
      if (context_.is_elastic) {
        problem(
            "fleetrun --elastic needs localsgd or adaptive_localsgd: where gradients are summed in "
            "every update, a rank that is lost takes the update with it; switch one of them on, or "
            "leave --elastic out and restart from snapshots");
      }
      return;
    }
    if (context_.is_elastic && context_.has_opaque_state) {
      problem(
          format("fleetrun --elastic gives a restarted rank the optimizer's state, which {} "
                 "keeps to itself; use an optimizer of Fleet's, or leave --elastic out and restart "
                 "from snapshots",
                 context_.optimizer_name));
    }

    if (strategy_.localsgd) {
      averaging("localsgd", strategy_.localsgd_configs);
      if (strategy_.localsgd_configs.k_steps == 1) {
        remark(
            "localsgd with k_steps = 1 averages after every update: the traffic of plain training, "
            "which would hide it behind backward");
      }
    } else {
      const auto& configs = strategy_.adaptive_localsgd_configs;
      averaging("adaptive_localsgd", configs);
      if (configs.init_k_steps > configs.max_k_steps) {
        problem(
            format("adaptive_localsgd_configs: the first interval, init_k_steps = {}, is longer "
                   "than max_k_steps = {} allows; raise max_k_steps",
                   configs.init_k_steps, configs.max_k_steps));
      }
    }
  }

  template <typename Configs>
  void averaging(std::string_view name, const Configs& configs) {
    // Before begin_step training is synchronous: there fp16_allreduce has gradients to send.
    if (strategy_.fp16_allreduce && configs.begin_step <= 1) {
      problem(
          format("fp16_allreduce is about gradients, and {} with begin_step = 1 never sends any "
                 "(parameters, which it averages, would not survive fp16); switch "
                 "fp16_allreduce off, or begin later",
                 name));
    }
    if (context_.is_elastic && configs.delayed) {
      problem(
          format("{}_configs.delayed leaves no moment at which all ranks hold the same parameters, "
                 "and a restarted rank to an elastic job needs one; leave one of them out",
                 name));
    }
    if (strategy_.sync_batch_norm) {
      problem(
          format("sync_batch_norm mixes the statistics of all ranks in every forward, but with "
                 "{} ranks hold different weights and must not wait for each other; switch "
                 "sync_batch_norm off: statistics are averaged with the parameters",
                 name));
    }
    const Configs defaults;
    if (configs.outer == defaults.outer && (configs.outer_lr != defaults.outer_lr ||
                                            configs.outer_momentum != defaults.outer_momentum)) {
      problem(
          format("{}_configs: outer_lr and outer_momentum are for outer = slow_momentum or "
                 "nesterov, and outer is average, which has neither; choose one, or leave them out",
                 name));
    }
    if (configs.delayed && configs.optimizer_state == "average") {
      problem(
          format("{}_configs: with delayed, an average arrives one interval late, and "
                 "optimizer_state = average would undo what the state has learned since; keep it "
                 "local",
                 name));
    }
    const auto& optimizer = context_.optimizer_name;
    if (configs.optimizer_state != defaults.optimizer_state && context_.has_opaque_state) {
      problem(
          format("{}_configs: optimizer_state = {} needs the optimizer's state, which {} keeps to "
                 "itself; keep it local, or use an optimizer of Fleet's",
                 name, configs.optimizer_state, optimizer));
    }
    if (configs.optimizer_state != defaults.optimizer_state && optimizer == "SGD") {
      remark(format("{}_configs.optimizer_state has no effect: SGD has no state", name));
    }
    if (context_.world_size == 1) {
      remark(format("{} has nothing to average on one rank: this is plain training", name));
    }
  }

  void communication() {
    const DistributedStrategy defaults;
    if (!strategy_.fuse_all_reduce_ops) {
      if (strategy_.fuse_grad_size_in_MB != defaults.fuse_grad_size_in_MB) {
        remark("fuse_grad_size_in_MB has no effect while fuse_all_reduce_ops is off");
      }
      if (strategy_.last_comm_group_size_MB != defaults.last_comm_group_size_MB) {
        remark("last_comm_group_size_MB has no effect while fuse_all_reduce_ops is off");
      }
    }
    if (context_.world_size > 1) return;
    if (strategy_.fp16_allreduce) remark("fp16_allreduce has nothing to send on one rank");
    if (strategy_.sync_batch_norm) remark("sync_batch_norm on one rank is plain batch norm");
  }

  void unused_configs() {
    const DistributedStrategy defaults;
    for (const Field& field : fields_of(&strategy_).fields) {
      const Field* configs = configs_of(field.name);
      if (!configs || std::get<bool>(field.get(&strategy_))) continue;
      const auto values = leaves(configs->view(&strategy_));
      const auto unset = leaves(configs->view(&defaults));
      for (size_t i = 0; i < values.size(); ++i) {
        const FieldValue value = values[i].value();
        if (value == unset[i].value()) continue;
        remark(format("{}.{} = {} has no effect while {} is off (on: {} = true, or --{})",
                      configs->name, values[i].path, to_text(value), field.name, field.name,
                      field.name));
      }
    }
  }

  const DistributedStrategy& asked_;
  const ResolvedStrategy resolved_;
  const DistributedStrategy& strategy_;
  const CheckContext& context_;
};

}  // namespace

std::vector<std::string> check(const DistributedStrategy& strategy, const CheckContext& context) {
  Check check(strategy, context);
  check.run();
  if (!check.problems.empty()) {
    throw UsageError::all("strategy", "this strategy cannot be used:", check.problems);
  }
  return check.remarks;
}

}  // namespace fleet
