// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/training_stack.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/options/command_line.h"
#include "fleet/core/text/format.h"
#include "fleet/snapshot/hand_over.h"
#include "fleet/train/command_line_strategy.h"
#include "fleet/train/layer_wise_optimizer.h"
#include "fleet/train/strategy_check.h"

namespace fleet {

TrainingStack::TrainingStack(std::unique_ptr<optim::Optimizer> own_optimizer,
                             const DistributedStrategy& asked_strategy,
                             std::shared_ptr<comm::Communicator> all_ranks)
    : comm(std::move(all_ranks)), sample_offsets(comm) {
  const auto remarks = check(asked_strategy, {.world_size = comm->size(),
                                              .optimizer_name = std::string(own_optimizer->name()),
                                              .weight_decay = own_weight_decay(*own_optimizer),
                                              .has_opaque_state = own_optimizer->has_opaque_state(),
                                              .is_elastic = comm->elastic() != nullptr});
  strategy = asked_strategy.resolved().strategy;
  optimizer = layer_wise_optimizer(std::move(own_optimizer), strategy);
  subject = std::make_unique<Subject>(comm, *optimizer);
  log::plain(strategy.overview());
  for (const auto& remark : remarks) log::info("strategy", remark);
  for (const auto& line : overridden_by_program(asked_strategy)) log::warn("strategy", line);

  const auto& model = optimizer->model();
  if (strategy.gradient_merge) {
    merge = optim::GradientMerge(gradient_merge_options(strategy.gradient_merge_configs));
  }
  if (strategy.recompute) {
    memory = std::make_unique<MemoryStrategy>(strategy.recompute_configs, comm->ranks_on_host());
  } else {
    plain_memory = std::make_unique<PlainMemory>();
  }
  if (strategy.amp) {
    amp = std::make_unique<MixedPrecision>(model, strategy.amp_configs);
    MixedPrecision::warn_if_slow(strategy.amp_configs);
  }
  if (strategy.fast_ops) {
    fast_ops = std::make_unique<FastOps>(fast_ops_options(strategy.fast_ops_configs));
  }
  auto arena_options = MixedPrecision::arena_options(strategy);
  arena_options.metadata_slots = comm->size();
  arena = std::make_unique<ParameterArena>(model, arena_options);
  optimizer->bind(*arena);
  micro_batch = std::make_unique<AutoMicroBatch>(model, arena->groups().front().values.device(),
                                                 comm->size());
  build_parallel();
  agree_on_seed();
  build_local_sgd();
  for (const auto& entry : strategies()) {
    if (auto hook = entry.make_hook ? entry.make_hook(*this) : nullptr) attach(std::move(hook));
  }
}

void TrainingStack::build_parallel() {
  const auto& model = optimizer->model();
  const auto counted = memory ? memory->counted() : 0;
  parallel = std::make_unique<DataParallel>(
      *arena, comm,
      DataParallelOptions{
          .fuse_all_reduce_ops = strategy.fuse_all_reduce_ops,
          .fuse_grad_size_in_MB = static_cast<double>(strategy.fuse_grad_size_in_MB),
          .last_comm_group_size_MB = strategy.last_comm_group_size_MB,
          .fp16_allreduce = strategy.fp16_allreduce,
          .find_unused_parameters = strategy.find_unused_parameters});
  normalizer = std::make_unique<LossNormalizer>(*arena, comm);
  // Gradients move to memory that the ranks share.
  if (memory) memory->charge(counted - memory->counted(), allocation::kGradients);
  parallel->broadcast(model);
  check_all_present(*comm, "at the start");
  if (strategy.sync_batch_norm) norm_comm = comm->duplicate("sync_batch_norm");
}

// Rank 0's generator gives it, as it gives the parameters.
void TrainingStack::agree_on_seed() {
  random_seed = static_cast<int64_t>(at::detail::getDefaultCPUGenerator().current_seed());
  if (comm->size() == 1) return;
  const auto seed = torch::tensor({random_seed}, torch::kLong);
  comm->broadcast(seed, 0, "the seed of random ops");
  random_seed = seed.item<int64_t>();
}

ops::RandomScope::Position TrainingStack::random_position(const MicroBatch& next) const {
  auto position = sample_offsets.position(next, window_samples);
  position.seed = random_seed;
  position.update = attempts();
  return position;
}

void TrainingStack::build_local_sgd() {
  if (!(strategy.localsgd || strategy.adaptive_localsgd) || comm->size() == 1) return;
  std::vector<torch::Tensor> state;
  for (const auto& item : optimizer->state()) {
    state.insert(state.end(), item.groups.begin(), item.groups.end());
  }
  if (const auto& counts = optimizer->span_updates(); counts.defined()) state.push_back(counts);
  local = std::make_unique<LocalSgd>(*arena, optimizer->model(), comm, local_sgd_options(strategy),
                                     std::move(state));
}

void TrainingStack::attach(std::shared_ptr<UpdateHook> hook) {
  const std::string name(hook ? hook->name() : "");
  if (name.empty() || std::ranges::find(hooks, name, &UpdateHook::name) != hooks.end()) {
    throw UsageError("hook", format("the name '{}' of a hook is empty, or taken", name),
                     "give each hook a name of its own: its state is kept under it in snapshots");
  }
  hooks.push_back(std::move(hook));
}

void TrainingStack::check_needs_no_scope() const {
  std::string names;
  const auto add = [&](bool is_on, const char* name) {
    if (is_on) names += format("{}{}", names.empty() ? "" : ", ", name);
  };
  add(amp != nullptr, "amp");
  add(memory != nullptr, "recompute");
  add(fast_ops != nullptr, "fast_ops");
  add(norm_comm != nullptr, "sync_batch_norm");
  if (names.empty()) return;
  throw Error(
      "backward",
      format("the strategy has {}, and the forward of this loss was outside of their scope", names),
      "compute each loss inside `const auto scope = optimizer.forward();`");
}

void TrainingStack::check_equal_micro_batches(int64_t own) const {
  if (!strategy.sync_batch_norm || comm->size() == 1) return;
  const auto range = torch::tensor({own, -own}, torch::kLong);
  comm->all_reduce(range, comm::ReduceOp::kMax, "the number of micro-batches");
  const auto most = range[0].item<int64_t>();
  const auto least = -range[1].item<int64_t>();
  if (most == least) return;
  throw Error("gradient_merge",
              format("a batch has {} micro-batches on one rank and {} on another, and "
                     "sync_batch_norm needs every rank in every forward",
                     most, least),
              "give all ranks batches of the same size, or use k_steps instead of "
              "micro_batch_size");
}

// Ranks may settle on their plans at different updates, and end together.
void TrainingStack::end_if_planned() const {
  const auto& text = memory->plan_text();
  const auto without = torch::tensor({text ? 0 : 1}, torch::kLong);
  comm->all_reduce(without, comm::ReduceOp::kSum, "how many ranks have no plan yet");
  if (without.item<int64_t>() == 0) throw HelpRequested(*text);
}

void TrainingStack::apply_sync(const SyncReport& sync) {
  optimizer->set_steps(std::max(optimizer->steps(), sync.updates));
  is_stopping |= sync.stop;
}

TrainingCounters TrainingStack::counters() const {
  if (merge.is_open()) {
    throw Error("snapshot",
                format("{} of {} calls of minimize wait for their update, and gradients are not "
                       "kept in a snapshot",
                       merge.micro_batches(), merge.calls_per_update()),
                "save when report.updated is true, or after end_epoch()");
  }
  const auto size = micro_batch->state();
  return {.attempts = attempts(),
          .updates = updates(),
          .calls = calls,
          .random_seed = random_seed,
          .total_seconds = total_seconds,
          .lr = optimizer->lr(),
          .loss_normalizer = normalizer->agreed().loss_normalizer,
          .loss_terms = normalizer->agreed().terms,
          .batch_samples = sample_offsets.state().samples,
          .first_sample = sample_offsets.state().first,
          .micro_batch_limit = size.limit,
          .micro_batch_preferred = size.preferred,
          .scaler = amp ? amp->scaler().state() : GradScalerState{}};
}

void TrainingStack::set_counters(const TrainingCounters& counters) {
  if (!schedule && counters.lr != optimizer->lr()) {
    log::info("snapshot", format("the learning rate is {} again, not {}; set_lr() changes it",
                                 counters.lr, optimizer->lr()));
  }
  own_attempts = counters.attempts;
  calls = counters.calls;
  if (counters.random_seed != 0) random_seed = counters.random_seed;
  total_seconds = counters.total_seconds;
  normalizer->set_agreed(
      {.loss_normalizer = counters.loss_normalizer, .terms = counters.loss_terms});
  sample_offsets.set_state({.samples = counters.batch_samples, .first = counters.first_sample});
  optimizer->set_steps(counters.updates);
  optimizer->set_lr(counters.lr);
  micro_batch->set_state({counters.micro_batch_limit, counters.micro_batch_preferred});
  if (amp && counters.scaler.scale > 0) amp->scaler().set_state(counters.scaler);
  arena->values_written();
}

}  // namespace fleet
