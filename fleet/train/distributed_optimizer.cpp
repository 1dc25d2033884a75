#include "fleet/train/distributed_optimizer.h"

#include <algorithm>
#include <cmath>

#include "fleet/comm/peer_watch.h"
#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/seconds_since.h"
#include "fleet/metrics/step_line.h"
#include "fleet/optim/gradient_health.h"
#include "fleet/optim/gradient_merge.h"
#include "fleet/parallel/sync_batch_norm.h"
#include "fleet/train/auto_micro_batch.h"
#include "fleet/train/hand_over.h"
#include "fleet/train/layer_wise_optimizer.h"
#include "fleet/train/local_sgd_options.h"
#include "fleet/train/memory_strategy.h"
#include "fleet/train/mixed_precision.h"
#include "fleet/train/straggler_watch.h"
#include "fleet/train/strategy_check.h"

namespace fleet {
namespace {

using Clock = std::chrono::steady_clock;

void check_loss(const torch::Tensor& loss, double weight) {
  if (!loss.defined() || loss.numel() != 1) {
    throw Error(
        "minimize",
        loss.defined()
            ? format("the loss has {} elements, and only one number can be minimized", loss.numel())
            : std::string("the closure returned an undefined tensor"),
        "return a mean (torch::mean), or WeightedLoss{.sum, .weight}");
  }
  if (!loss.requires_grad()) {
    throw Error("minimize", "the loss does not depend on any trainable parameter",
                "do not compute it under NoGradGuard, from detached tensors, or by .item()");
  }
  if (!(std::isfinite(weight) && weight >= 0)) {
    throw Error("minimize", format("the loss weighs {}", weight), "give a weight of at least 0");
  }
}

void check_gradients(const optim::GradientHealth& health, const ParameterArena& arena) {
  if (health.is_finite()) return;
  throw Error("minimize",
              format("the gradient of '{}' is not finite, though the loss is; nothing was updated",
                     arena.spans()[*health.first_bad].name),
              "lower the learning rate, warm it up, or look for a division by 0 or a root of 0 in "
              "the model");
}

std::vector<std::string> names_of_ranks(const comm::Communicator& comm) {
  std::vector<std::string> names;
  if (comm.watch() == nullptr) return names;
  for (const auto& peer : comm.watch()->peers()) {
    names.push_back(format("rank {} ({}, pid {})", names.size(), peer.host, peer.pid));
  }
  return names;
}

}  // namespace

struct DistributedOptimizer::State {
  std::unique_ptr<optim::Optimizer> optimizer;
  DistributedStrategy strategy;
  std::shared_ptr<comm::Communicator> comm;
  std::shared_ptr<comm::Communicator> norm_comm;  // for sync_batch_norm
  std::unique_ptr<ParameterArena> arena;
  std::unique_ptr<DataParallel> parallel;
  std::unique_ptr<optim::ArenaBlocks> blocks;
  std::unique_ptr<MixedPrecision> amp;     // null: off
  std::unique_ptr<MemoryStrategy> memory;  // null: off
  std::unique_ptr<AutoMicroBatch> micro_batch;
  std::unique_ptr<LocalSgd> local;  // null: off
  std::unique_ptr<StragglerWatch> stragglers;
  std::optional<optim::Schedule> schedule;
  optim::GradientMerge merge;
  // Losses are divided by this before backward, so that gradients come out as means without another
  // pass: the ranks' usual weight together, agreed on once. Where a window weighs otherwise, the
  // optimizer makes up for it as it reads.
  double usual_weight = 0;
  int64_t calls = 0;
  int64_t attempts = 0;
  double total_seconds = 0;
  bool is_sending = false;  // what has been sent cannot be taken back
  bool is_stopping = false;

  bool is_local() const { return local && local->is_local(); }
  double loss_scale() const { return amp ? amp->scaler().scale() : 1; }
  int log_ratios_every() const {
    if (strategy.lars) return strategy.lars_configs.log_every;
    return strategy.lamb ? strategy.lamb_configs.log_every : 0;
  }

  // Merging without a word on the size of parts leaves it to the plans.
  bool may_choose_parts() const {
    const auto& configs = strategy.gradient_merge_configs;
    return memory && strategy.gradient_merge && configs.k_steps == 1 &&
           configs.micro_batch_size == 0 && !(strategy.sync_batch_norm && comm->size() > 1);
  }

  void agree_on_usual_weight(double own) {
    if (is_local()) {  // nobody else divides by it
      usual_weight = own > 0 ? own : 1;
      return;
    }
    const auto agreed = torch::full({1}, own, torch::kDouble);
    comm->all_reduce(agreed, comm::ReduceOp::kMax, "the usual weight of an update");
    usual_weight = agreed.item<double>() * comm->size();
    if (usual_weight == 0) usual_weight = 1;
  }

  // Batch norm over all ranks meets once per forward: with other numbers of parts ranks would wait
  // for ever.
  void agree_on_parts(int64_t own) const {
    if (!strategy.sync_batch_norm || comm->size() == 1) return;
    const auto range = torch::tensor({own, -own}, torch::kLong);
    comm->all_reduce(range, comm::ReduceOp::kMax, "the number of parts");
    const auto most = range[0].item<int64_t>();
    const auto least = -range[1].item<int64_t>();
    if (most != least) {
      throw Error("gradient_merge",
                  format("a batch has {} parts on one rank and {} on another, and sync_batch_norm "
                         "needs every rank in every part",
                         most, least),
                  "give all ranks batches of the same size, or use k_steps instead of "
                  "micro_batch_size");
    }
  }

  // From here on gradients are final. `parts`: what the user asked for; without avg the update is
  // as many times larger.
  void listen(int64_t parts) {
    is_sending = comm->size() > 1 && !is_local();
    parallel->listen(merge.weight(), merge.loss_sum(), static_cast<double>(parts));
  }

  void open_local_window() {
    parallel->set_alone(is_local());
    if (is_local()) local->before_step();
  }

  // A skipped update counts like any other, so that all ranks come to an average together.
  void count_step(UpdateReport& report) {
    const auto sync = local->after_step({.weight = report.updated ? report.weight : 0,
                                         .loss = report.loss,
                                         .lr = report.lr,
                                         .updates = optimizer->steps(),
                                         .compute_seconds = parallel->computed_seconds()});
    if (is_local()) report.sync_every = local->k_steps();
    if (!sync.synced) return;
    report.synced = true;
    report.exposed_communication_s += sync.seconds;
    if (sync.weight > 0) {
      report.loss = sync.loss;
      report.weight = sync.weight;
    }
    follow(sync);
  }

  // Ranks that skipped an update, or had fewer batches, go on with the others' schedule.
  void follow(const SyncReport& sync) {
    optimizer->set_steps(std::max(optimizer->steps(), sync.updates));
    is_stopping |= sync.stop;
    name_stragglers(sync.compute_seconds, sync.steps);
  }

  void name_stragglers(const std::vector<double>& seconds, int64_t updates) const {
    for (const auto& line : stragglers->observe(seconds, updates)) log::warn("straggler", line);
  }

  // The graph of a backward that failed, and what it holds.
  void drop_failed_call() noexcept {
    merge.close();
    try {
      compat::flush_failed_backward();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory for that either
    }
    if (memory) memory->forget();
  }

  // Whether the batch may be done again in smaller parts; an Error where other ranks are in the
  // middle of it.
  bool may_start_again(const c10::OutOfMemoryError& error) const {
    if (!micro_batch->can_shrink()) return false;
    const bool is_norm_synced = strategy.sync_batch_norm && comm->size() > 1;
    if (!is_sending && !is_norm_synced) return true;
    throw Error("memory",
                format("rank {} is out of memory {}, where a batch cannot be started again: {}",
                       comm->rank(),
                       is_sending ? "in a backward that has begun to send gradients"
                                  : "between forwards that all ranks share (sync_batch_norm)",
                       error.what_without_backtrace()),
                "split batches smaller from the start: gradient_merge_configs.micro_batch_size");
  }

  void log_trust_ratios() const {
    const int every = log_ratios_every();
    if (every == 0 || optimizer->steps() % every != 0) return;
    for (const auto& item : optimizer->trust_ratios()) {
      log::info(strategy.lars ? "lars" : "lamb",
                format("update {}: {} trust ratio {:.6g} (|p| {:.6g}, |{}| {:.6g})",
                       optimizer->steps(), item.name, item.ratio, item.value_norm,
                       strategy.lars ? "g" : "u", item.update_norm));
    }
  }
};

DistributedOptimizer::DistributedOptimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                           const DistributedStrategy& strategy,
                                           std::shared_ptr<comm::Communicator> comm)
    : state_(std::make_unique<State>()) {
  auto& s = *state_;
  const auto remarks = check(strategy, {.world_size = comm->size(),
                                        .optimizer_name = std::string(optimizer->name()),
                                        .weight_decay = own_weight_decay(*optimizer),
                                        .has_opaque_state = optimizer->has_opaque_state(),
                                        .is_elastic = comm->elastic() != nullptr});
  auto resolved = strategy.resolved();
  s.strategy = std::move(resolved.strategy);
  s.optimizer = layer_wise_optimizer(std::move(optimizer), s.strategy);
  s.comm = std::move(comm);
  log::plain(s.strategy.overview());
  for (const auto& note : resolved.notes) log::info("strategy", note);
  for (const auto& remark : remarks) log::info("strategy", remark);

  const auto& model = s.optimizer->model();
  if (s.strategy.gradient_merge) {
    const auto& configs = s.strategy.gradient_merge_configs;
    s.merge = optim::GradientMerge({.k_steps = configs.k_steps,
                                    .avg = configs.avg,
                                    .micro_batch_size = configs.micro_batch_size,
                                    .drop_last = configs.drop_last});
  }
  if (s.strategy.recompute) {
    s.memory = std::make_unique<MemoryStrategy>(s.strategy.recompute_configs);
  }
  if (s.strategy.amp) {
    s.amp = std::make_unique<MixedPrecision>(model, s.strategy.amp_configs);
    MixedPrecision::warn_if_slow(s.strategy.amp_configs);
  }
  auto arena_options = MixedPrecision::arena_options(s.strategy);
  arena_options.head_places = s.comm->size();
  s.arena = std::make_unique<ParameterArena>(model, arena_options);
  s.stragglers =
      std::make_unique<StragglerWatch>(s.strategy.straggler_factor, names_of_ranks(*s.comm));
  s.blocks = std::make_unique<optim::ArenaBlocks>(*s.arena);
  s.optimizer->bind(*s.arena);
  s.micro_batch = std::make_unique<AutoMicroBatch>(model, s.arena->groups().front().values.device(),
                                                   s.comm->size());
  const auto counted = s.memory ? s.memory->counted() : 0;
  s.parallel = std::make_unique<DataParallel>(
      *s.arena, s.comm,
      DataParallelOptions{
          .fuse_all_reduce_ops = s.strategy.fuse_all_reduce_ops,
          .fuse_grad_size_in_MB = static_cast<double>(s.strategy.fuse_grad_size_in_MB),
          .last_comm_group_size_MB = s.strategy.last_comm_group_size_MB,
          .fp16_allreduce = s.strategy.fp16_allreduce,
          .find_unused_parameters = s.strategy.find_unused_parameters});
  // Gradients move to memory that the ranks share.
  if (s.memory) s.memory->charge(counted - s.memory->counted());
  s.parallel->broadcast(model);
  check_all_present(*s.comm, "at the start");
  if (s.strategy.sync_batch_norm) s.norm_comm = s.comm->duplicate("sync_batch_norm");
  if ((s.strategy.localsgd || s.strategy.adaptive_localsgd) && s.comm->size() > 1) {
    std::vector<torch::Tensor> state;
    for (const auto& item : s.optimizer->state()) {
      state.insert(state.end(), item.groups.begin(), item.groups.end());
    }
    if (const auto& updates = s.optimizer->span_updates(); updates.defined()) {
      state.push_back(updates);
    }
    s.local = std::make_unique<LocalSgd>(*s.arena, model, s.comm, local_sgd_options(s.strategy),
                                         std::move(state));
  }
}

DistributedOptimizer::~DistributedOptimizer() = default;
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;

UpdateReport DistributedOptimizer::minimize(const std::function<Loss()>& loss) {
  return report_of_call([&](UpdateReport& report) {
    const auto& merge = state_->merge;
    const bool is_last = merge.next_is_last();
    const Part part{.weight = 1, .is_last = is_last, .of = merge.calls_per_update(), .loss = loss};
    if (!merge.is_open()) state_->micro_batch->open_window();
    bool done = false;
    while (!done) done = run_one(part, report);
    if (is_last) update(report);
  });
}

UpdateReport DistributedOptimizer::minimize_samples(int64_t samples, bool can_slice,
                                                    const SliceLoss& loss) {
  auto& s = *state_;
  if (samples == 0 && s.strategy.sync_batch_norm) {
    throw Error("minimize",
                "this rank has an empty batch, and sync_batch_norm needs samples on every rank",
                "drop the last short batch");
  }
  if (s.merge.is_open()) {
    throw Error("gradient_merge",
                format("{} of {} calls of minimize(closure) wait for their update, and "
                       "minimize(batch, closure) is one of its own",
                       s.merge.parts(), s.merge.calls_per_update()),
                "call end_epoch() first, or use one of the two");
  }
  const auto cuts = s.micro_batch->cut(s.merge, samples);
  if (cuts.size() > 1 && !can_slice) {
    throw Error("gradient_merge",
                format("this batch of {} samples is to be cut into {} parts, and its type has no "
                       "slice(begin, end)",
                       samples, cuts.size()),
                "give it slice(), or call minimize(closure) once per part");
  }
  return report_of_call([&](UpdateReport& report) {
    s.agree_on_parts(static_cast<int64_t>(cuts.size()));
    s.micro_batch->open_window();
    bool done = false;
    while (!done) done = run_all(samples, loss, can_slice, report);
    if (cuts.empty()) {
      if (s.usual_weight == 0) s.agree_on_usual_weight(0);
      s.arena->begin_window();
      s.parallel->sit_out();
    }
    update(report);
  });
}

// False: memory was short, nothing is left of it, and it may fit by another plan. Only at the start
// of a window: what earlier calls brought cannot be told apart any more.
bool DistributedOptimizer::run_one(const Part& part, UpdateReport& report) {
  auto& s = *state_;
  const bool is_first = !s.merge.is_open();
  const double usual_weight = s.usual_weight;
  try {
    run(part, report);
  } catch (const c10::OutOfMemoryError& error) {
    const bool again = is_first && s.memory && s.may_start_again(error) && s.memory->plan_again();
    if (!again) throw;
    s.drop_failed_call();
    s.micro_batch->put_back();
    if (s.comm->size() == 1) s.usual_weight = usual_weight;
    return false;
  }
  return true;
}

// False: memory was short, nothing is left of it, and smaller parts may fit.
bool DistributedOptimizer::run_all(int64_t samples, const SliceLoss& loss, bool can_slice,
                                   UpdateReport& report) {
  auto& s = *state_;
  const auto cuts = s.micro_batch->cut(s.merge, samples);
  const double usual_weight = s.usual_weight;
  try {
    for (const auto& cut : cuts) {
      run({.weight = static_cast<double>(cut.end - cut.begin),
           .is_last = cut.end == samples,
           .of = static_cast<int64_t>(cuts.size()),
           .samples = cut.end - cut.begin,
           .asked = static_cast<int64_t>(s.merge.cut(samples).size()),
           .loss = [&] { return loss(cut.begin, cut.end); }},
          report);
    }
  } catch (const c10::OutOfMemoryError& error) {
    if (!can_slice || !s.may_start_again(error)) throw;
    const bool plan_again = s.memory && s.memory->plan_again();
    s.drop_failed_call();
    if (!plan_again) s.micro_batch->shrink(cuts, error);
    s.micro_batch->put_back();
    if (s.comm->size() == 1) s.usual_weight = usual_weight;  // others have agreed on it
    return false;
  }
  s.micro_batch->close_window(cuts, s.strategy.gradient_merge);
  if (can_slice && s.may_choose_parts()) {
    s.micro_batch->prefer(s.memory->quickest_part(s.micro_batch->largest_part(s.merge, samples)));
  }
  return true;
}

std::optional<UpdateReport> DistributedOptimizer::end_epoch() {
  auto& s = *state_;
  std::optional<UpdateReport> last;
  if (s.merge.options().drop_last) s.merge.close();
  if (s.merge.is_open()) {
    last = report_of_call([&](UpdateReport& report) {
      s.listen(s.merge.parts());
      report.parts = s.merge.parts();
      update(report);
    });
  }
  if (s.local) s.follow(s.local->end_epoch());
  return last;
}

void DistributedOptimizer::sync() {
  if (state_->local) state_->follow(state_->local->sync());
}

// A call that throws leaves parameters as they were, and forgets its window.
UpdateReport DistributedOptimizer::report_of_call(const std::function<void(UpdateReport&)>& work) {
  auto& s = *state_;
  const auto begin = Clock::now();
  UpdateReport report;
  if (s.schedule) s.optimizer->set_lr((*s.schedule)(updates()));
  report.lr = s.optimizer->lr();
  report.loss_scale = s.loss_scale();
  if (s.local && !s.merge.is_open()) s.open_local_window();
  try {
    work(report);
  } catch (...) {
    s.drop_failed_call();
    s.is_sending = false;
    throw;
  }
  s.is_sending = false;
  report.call = ++s.calls;
  report.update = updates();
  report.seconds = seconds_since(begin);
  report.total_seconds = s.total_seconds += report.seconds;
  if (s.memory) report.memory = s.memory->report_of_call(report.updated);
  return report;
}

/// A checked loss; `value` times `to_sum` is the sum over what it weighs.
struct DistributedOptimizer::PartLoss {
  torch::Tensor value;
  double weight = 0;
  double to_sum = 1;
  double sum = 0;
};

DistributedOptimizer::PartLoss DistributedOptimizer::forward(const Part& part) {
  auto& s = *state_;
  const SyncBatchNormScope sync_batch_norm(s.norm_comm);
  const auto scope = autocast();
  MemoryStrategy::Forward recorded(s.memory.get(), part.samples);
  const auto loss = part.loss();
  recorded.finish();
  PartLoss result;
  if (const auto* mean = std::get_if<torch::Tensor>(&loss)) {
    result = {.value = *mean, .weight = part.weight, .to_sum = part.weight};
  } else {
    const auto& weighted = std::get<WeightedLoss>(loss);
    result = {.value = weighted.sum, .weight = weighted.weight};
  }
  check_loss(result.value, result.weight);
  const auto value = result.value.item<double>();
  // With amp the gradients will not be finite either, and all ranks skip the update together.
  if (!std::isfinite(value) && !s.amp) {
    throw Error("minimize",
                format("the loss is {} at update {} on rank {}; nothing was updated", value,
                       updates() + 1, s.comm->rank()),
                "lower the learning rate, warm it up, or look for bad samples");
  }
  result.sum = value * result.to_sum;
  return result;
}

// One micro-batch: gradients land in the arena; the last one of a window sends them while backward
// runs.
void DistributedOptimizer::run(const Part& part, UpdateReport& report) {
  auto& s = *state_;
  if (!s.merge.is_open()) {
    s.arena->begin_window();
    if (s.amp) s.amp->open_window();
  }
  const auto loss = forward(part);
  s.merge.add(loss.weight, loss.sum);
  if (s.usual_weight == 0) s.agree_on_usual_weight(loss.weight * static_cast<double>(part.of));
  const bool overlap = s.micro_batch->may_overlap(part.samples);
  const int64_t asked = part.asked > 0 ? part.asked : s.merge.parts();
  if (part.is_last && overlap) s.listen(asked);
  // Scaled in fp32 at least: in fp16 the product would be infinite.
  const auto value = loss.value.element_size() < 4 ? loss.value.to(torch::kFloat) : loss.value;
  (value * (loss.to_sum / s.usual_weight * s.loss_scale())).backward();
  if (s.memory) s.memory->end_backward();
  if (part.is_last && !overlap) s.listen(asked);
  report.parts = s.merge.parts();
  report.weight = loss.weight;
  report.loss = loss.weight > 0 ? loss.sum / loss.weight : 0;
}

void DistributedOptimizer::update(UpdateReport& report) {
  auto& s = *state_;
  const auto reduced = s.parallel->wait();
  if (!s.is_local()) check_all_present(*s.comm, "before local SGD began (begin_step)");
  s.merge.close();
  ++s.attempts;
  report.exposed_communication_s = s.parallel->exposed_seconds();
  s.is_stopping |= reduced.stop;
  s.name_stragglers(reduced.compute_seconds, 1);
  if (reduced.weight > 0) {
    step(reduced, report);
  } else if (!s.is_local()) {
    throw Error("minimize", "no rank had anything to learn from: all batches were empty");
  }
  if (s.local) s.count_step(report);
  report.stop = s.is_stopping;
  s.parallel->begin_computing();
}

void DistributedOptimizer::step(const ReducedHead& reduced, UpdateReport& report) {
  auto& s = *state_;
  report.loss = reduced.loss / reduced.weight;
  report.weight = reduced.weight;

  // From what lies in the arena to the gradient of the mean loss, or of the sum of the parts'
  // means.
  optim::StepInput input{.gradient_scale = s.usual_weight / reduced.weight / s.loss_scale()};
  if (!s.merge.options().avg) input.gradient_scale *= reduced.parts / reduced.ranks;
  if (s.amp || s.optimizer->max_grad_norm() > 0) {
    s.blocks->choose(reduced.used);
    const auto health = optim::gradient_health(*s.arena, *s.blocks);
    if (s.amp && !health.is_finite()) {  // sums are the same on all ranks that share them
      report.skipped = true;
      return s.amp->skip(*s.arena);
    }
    check_gradients(health, *s.arena);
    input.gradient_norm = health.norm;
    report.gradient_norm = health.norm * input.gradient_scale;
  }
  s.optimizer->step(reduced.used, input);
  if (s.amp) s.amp->scaler().update(/*overflow=*/false);
  s.log_trust_ratios();
  report.updated = true;
}

precision::AutocastScope DistributedOptimizer::autocast() const {
  return precision::AutocastScope(state_->amp ? &state_->amp->autocast() : nullptr);
}

double DistributedOptimizer::lr() const { return state_->optimizer->lr(); }
void DistributedOptimizer::set_lr(double lr) {
  state_->schedule.reset();
  state_->optimizer->set_lr(lr);
}
void DistributedOptimizer::set_schedule(optim::Schedule schedule) {
  log::info("schedule", schedule.describe());
  state_->schedule = std::move(schedule);
}
int64_t DistributedOptimizer::skipped_updates() const {
  return state_->amp ? state_->amp->scaler().skipped_total() : 0;
}
int64_t DistributedOptimizer::updates() const { return state_->optimizer->steps(); }
int64_t DistributedOptimizer::attempts() const {
  return state_->local ? state_->local->steps() : state_->attempts;
}
bool DistributedOptimizer::is_in_window() const { return state_->merge.is_open(); }
bool DistributedOptimizer::is_stopping() const { return state_->is_stopping; }

TrainingCounters DistributedOptimizer::counters() const {
  const auto& s = *state_;
  if (is_in_window()) {
    throw Error("snapshot",
                format("{} of {} calls of minimize wait for their update, and gradients are not "
                       "kept in a snapshot",
                       s.merge.parts(), s.merge.calls_per_update()),
                "save when report.updated is true, or after end_epoch()");
  }
  const auto parts = s.micro_batch->state();
  return {.attempts = attempts(),
          .updates = updates(),
          .calls = s.calls,
          .total_seconds = s.total_seconds,
          .lr = lr(),
          .usual_weight = s.usual_weight,
          .part_limit = parts.limit,
          .part_preferred = parts.preferred,
          .scaler = s.amp ? s.amp->scaler().state() : GradScalerState{}};
}

void DistributedOptimizer::set_counters(const TrainingCounters& counters) {
  auto& s = *state_;
  if (!s.schedule && counters.lr != lr()) {
    log::info("snapshot", format("the learning rate is {} again, not {}; set_lr() changes it",
                                 counters.lr, lr()));
  }
  s.attempts = counters.attempts;
  s.calls = counters.calls;
  s.total_seconds = counters.total_seconds;
  s.usual_weight = counters.usual_weight;
  s.optimizer->set_steps(counters.updates);
  s.optimizer->set_lr(counters.lr);
  s.micro_batch->set_state({counters.part_limit, counters.part_preferred});
  if (s.amp && counters.scaler.scale > 0) s.amp->scaler().set_state(counters.scaler);
  s.arena->values_written();
}

const DistributedStrategy& DistributedOptimizer::strategy() const { return state_->strategy; }
const ParameterArena& DistributedOptimizer::arena() const { return *state_->arena; }
const optim::Optimizer& DistributedOptimizer::optimizer() const { return *state_->optimizer; }
optim::Optimizer& DistributedOptimizer::optimizer() { return *state_->optimizer; }
const std::shared_ptr<comm::Communicator>& DistributedOptimizer::comm() const {
  return state_->comm;
}
LocalSgd* DistributedOptimizer::local_sgd() { return state_->local.get(); }

DistributedOptimizer distributed_optimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                           const DistributedStrategy& strategy) {
  return DistributedOptimizer(std::move(optimizer), strategy, world());
}

void log_step(const UpdateReport& report) {
  log::plain(step_line({.worker_index = is_initialized() ? worker_index() : 0,
                        .step = report.call - 1,
                        .cost = report.loss,
                        .step_time_s = report.seconds,
                        .total_time_s = report.total_seconds}));
}

}  // namespace fleet
