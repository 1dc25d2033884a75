// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/distributed_optimizer.h"

#include <cmath>
#include <optional>

#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/log_subject.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/last_resort.h"
#include "fleet/memory/allocator/memory_counter.h"
#include "fleet/optim/passes/gradient_health.h"
#include "fleet/snapshot/hand_over.h"
#include "fleet/train/update/accumulation_window.h"
#include "fleet/train/update/forward_scopes.h"
#include "fleet/train/update/non_finite.h"
#include "fleet/train/update/out_of_memory_retry.h"
#include "fleet/train/update/training_stack.h"
#include "fleet/train/update/update_log.h"

namespace fleet {

struct DistributedOptimizer::State : TrainingStack {
  using TrainingStack::TrainingStack;

  AccumulationWindow window{*this};
  OutOfMemoryRetry retry{*this, window};
  UpdateLog log{*this};
  double backward_seconds = 0;  // of the last `backward` and its forward, since the last `step`
};

DistributedOptimizer::DistributedOptimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                           const DistributedStrategy& strategy,
                                           std::shared_ptr<comm::Communicator> comm)
    : state_(std::make_unique<State>(std::move(optimizer), strategy, std::move(comm))) {}
DistributedOptimizer::~DistributedOptimizer() = default;
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;

// ---- one update, in order

// The micro-batches of one call, and with the last of a window the update.
void DistributedOptimizer::update(const BatchShape& batch, const SliceLoss& closure,
                                  UpdateReport& report) {
  auto& s = *state_;
  s.window.open(batch.loss_weights);
  s.retry.run(batch, [&](const std::vector<MicroBatch>& micro_batches) {
    report.own_loss = report.own_weight = 0;  // of an attempt that ran out of memory
    for (const auto& micro_batch : micro_batches) {
      s.window.begin();
      const auto loss = compute_loss(micro_batch, closure);
      compute_gradients(micro_batch, loss, report);
    }
  });
  if (!batch.is_micro_batch && batch.samples == 0) s.window.contribute_zeros();
  report.in_window = !s.window.is_armed();
  if (s.window.is_armed()) complete(report);
}

// From the gradients of a window that is armed.
void DistributedOptimizer::complete(UpdateReport& report) {
  auto& s = *state_;
  // Activations are gone; what is short here (the state that an optimizer of LibTorch makes in its
  // first update, say) is found by the next forward, before anything has changed.
  const memory::BudgetExemptScope cannot_be_undone;
  const auto reduced = reduce(report);
  const auto health = check(reduced, report);  // none: nothing to update with
  if (health) step(reduced, *health, report);
  if (s.local) average(report);
  report.update = updates();
  for (const auto& hook : s.hooks) hook->after_update(report);
  report.stop = s.is_stopping;
  s.parallel->begin_computing();
}

Loss DistributedOptimizer::compute_loss(const MicroBatch& micro_batch, const SliceLoss& closure) {
  auto& s = *state_;
  s.arena->set_gradient_policy(ParameterArena::GradientPolicy::kReject);
  ForwardScopes scopes(s, micro_batch);
  auto loss = closure(micro_batch.begin, micro_batch.end);
  scopes.end();
  return loss;
}

// Gradients are written to the arena; the last micro-batch of a window sends them while its
// backward runs.
void DistributedOptimizer::compute_gradients(const MicroBatch& micro_batch, const Loss& value,
                                             UpdateReport& report) {
  auto& s = *state_;
  const log::SubjectScope subject(s.subject->text());
  const auto loss = read_loss(value, micro_batch.weight, micro_batch.samples());
  const double mean = loss.mean();
  // With amp all ranks skip the update together.
  if (!std::isfinite(mean) && !s.amp) throw non_finite_loss(s, mean);
  s.window.add(micro_batch.samples());
  s.normalizer->add(loss, micro_batch.is_last, micro_batch.window_size);
  const bool overlap = s.micro_batch->may_overlap(micro_batch.samples());
  const auto requested =
      micro_batch.requested_size > 0 ? micro_batch.requested_size : s.merge.micro_batches();
  if (micro_batch.is_last && overlap) s.window.arm(requested);
  s.arena->set_gradient_policy(ParameterArena::GradientPolicy::kAccumulate);
  std::optional<memory::LastResortScope> last_resort;
  if (s.memory && !micro_batch.can_restart) last_resort.emplace([&] { return s.memory->exceed(); });
  if (s.normalizer->must_defer()) {
    s.normalizer->defer(loss, s.loss_scale());
  } else {
    const auto scaled = s.normalizer->scaled(loss, s.loss_scale());
    compat::run_autograd([&] { scaled.backward(); });
  }
  last_resort.reset();
  s.arena->set_gradient_policy(ParameterArena::GradientPolicy::kDiscard);
  if (s.memory) s.memory->end_backward();
  if (micro_batch.is_last && !overlap) s.window.arm(requested);
  report.micro_batches = s.merge.micro_batches();
  report.weight = loss.weight;
  report.loss = mean;
  report.count_own();
}

ReducedMetadata DistributedOptimizer::reduce(UpdateReport& report) {
  auto& s = *state_;
  auto reduced = s.parallel->wait();
  if (!s.is_local()) check_all_present(*s.comm, "before local SGD began (begin_step)");
  s.window.close();
  ++s.own_attempts;
  s.is_stopping |= reduced.stop;
  s.sample_offsets.close(reduced.is_resized);
  s.log.reduced(reduced);
  s.log.discarded_gradients();
  s.log.stragglers(reduced.compute_seconds, 1);
  report.exposed_communication_s = s.parallel->exposed_seconds();
  return reduced;
}

// Sums are the same on all ranks that share them, and so is what is decided here.
std::optional<optim::GradientHealth> DistributedOptimizer::check(const ReducedMetadata& reduced,
                                                                 UpdateReport& report) {
  auto& s = *state_;
  if (reduced.weight <= 0) {
    if (s.is_local()) return {};
    throw Error("minimize", "nothing was updated: the batches of all ranks were empty");
  }
  report.loss = s.normalizer->mean_loss(reduced.loss, reduced.weight);
  report.weight = reduced.weight;
  const auto health = optim::gradient_health(*s.arena, s.optimizer->choose_blocks(reduced.used));
  const auto bad = health.first_bad ? s.arena->spans()[*health.first_bad].name : std::string();
  if (s.amp && !(health.is_finite() && std::isfinite(report.loss))) {
    report.skipped = true;
    const log::SubjectScope subject(s.subject->text());
    s.amp->skip(
        *s.arena,
        {.update = updates() + 1, .loss = report.loss, .gradient = bad, .is_local = s.is_local()});
    return {};
  }
  if (!health.is_finite()) throw non_finite_gradient(s, bad);
  return health;
}

void DistributedOptimizer::step(const ReducedMetadata& reduced, const optim::GradientHealth& health,
                                UpdateReport& report) {
  auto& s = *state_;
  // From what lies in the arena to the gradient of the mean loss, or of the sum of the
  // micro-batches' means.
  double scale = s.normalizer->correction(reduced.weight) / s.loss_scale();
  if (!s.merge.options().avg) scale *= reduced.micro_batches / reduced.ranks;
  s.optimizer->step(
      reduced.used,
      {.gradient_scale = scale, .gradient_norm = health.norm, .block_sums = health.block_sums});
  report.gradient_norm = health.norm * scale;
  if (s.amp) s.amp->scaler().update(/*overflow=*/false);
  report.updated = true;
}

// Of local SGD. A skipped update counts like any other, so that all ranks come to an average
// together.
void DistributedOptimizer::average(UpdateReport& report) {
  auto& s = *state_;
  const auto sync = s.local->after_step({.weight = report.updated ? report.weight : 0,
                                         .loss = report.loss,
                                         .lr = report.lr,
                                         .updates = s.optimizer->steps(),
                                         .compute_seconds = s.parallel->computed_seconds()});
  if (s.is_local()) report.sync_every = s.local->k_steps();
  if (!sync.synced) return;
  report.synced = true;
  report.exposed_communication_s += sync.seconds;
  if (sync.weight > 0) {
    report.loss = sync.loss;
    report.weight = sync.weight;
  }
  apply_sync(sync);
}

void DistributedOptimizer::apply_sync(const SyncReport& sync) {
  state_->apply_sync(sync);
  state_->log.stragglers(sync.compute_seconds, sync.steps);
}

// ---- calls

// A call that throws leaves parameters as they were, and drops its window.
UpdateReport DistributedOptimizer::report_of_call(const std::function<void(UpdateReport&)>& work,
                                                  MemoryFrom from) {
  auto& s = *state_;
  const auto begin = std::chrono::steady_clock::now();
  const MemoryStrategy::Enforced budget(s.memory.get());
  if (s.plain_memory && from == MemoryFrom::kThisCall) s.plain_memory->begin();
  UpdateReport report;
  if (s.schedule) s.optimizer->set_lr((*s.schedule)(updates()));
  report.lr = s.optimizer->lr();
  report.loss_scale = s.loss_scale();
  if (s.local && !s.window.is_open()) {
    s.parallel->set_no_sync(s.is_local());
    if (s.is_local()) s.local->before_step();
  }
  try {
    work(report);
  } catch (...) {
    s.window.abandon();
    throw;
  }
  report.call = s.calls;
  report.update = updates();
  report.seconds += seconds_since(begin);  // to those of the user's own forward
  report.total_seconds = s.total_seconds += report.seconds;
  const log::SubjectScope subject(s.subject->text());
  report.memory = s.memory ? s.memory->report_of_call(report.updated, s.window.is_open())
                           : s.plain_memory->report(report.updated, s.window.is_open());
  if (s.strategy.recompute_configs.plan_only && !s.window.is_open()) s.end_if_planned();
  return report;
}

UpdateReport DistributedOptimizer::minimize(const std::function<Loss()>& loss) {
  auto& s = *state_;
  s.window.check_not_armed();
  s.window.drop_if_cleared();
  return report_of_call([&](UpdateReport& report) {
    s.log.calls();
    update(
        {.is_micro_batch = true}, [&](int64_t, int64_t) { return loss(); }, report);
    ++s.calls;
  });
}

UpdateReport DistributedOptimizer::minimize_samples(const BatchShape& batch,
                                                    const SliceLoss& loss) {
  auto& s = *state_;
  s.window.drop_if_cleared();
  if (batch.samples == 0 && s.strategy.sync_batch_norm) {
    throw Error("minimize",
                "this rank has an empty batch, and sync_batch_norm needs samples on every rank",
                "drop the last short batch");
  }
  s.window.check_closed();
  const auto micro_batches = s.retry.count(batch);
  return report_of_call([&](UpdateReport& report) {
    s.check_equal_micro_batches(micro_batches);
    s.sample_offsets.open(batch.samples, s.is_local());
    report.samples = batch.samples;
    update(batch, loss, report);
    s.log.batch(s.window.samples(), BatchForm::kSplit);
    ++s.calls;
  });
}

DistributedOptimizer::ForwardScope DistributedOptimizer::forward(int64_t samples) {
  auto& s = *state_;
  s.window.check_not_armed();
  s.window.drop_if_cleared();
  s.window.begin_for_backward();
  s.window.forward.reset();  // of a forward whose loss was not used
  if (s.plain_memory) s.plain_memory->begin();
  s.window.forward =
      std::make_shared<ForwardScopes>(s, MicroBatch{.end = samples, .can_restart = false});
  return ForwardScope(s.window.forward);
}

UpdateReport DistributedOptimizer::backward(const Loss& loss, const BackwardOptions& options) {
  auto& s = *state_;
  s.window.check_not_armed();
  s.window.drop_if_cleared();
  const auto work = [&](UpdateReport& report) {
    const auto scopes = std::exchange(s.window.forward, nullptr);
    if (!scopes) s.check_needs_no_scope();
    s.window.begin_for_backward();
    if (scopes) {
      scopes->end();
      report.seconds = scopes->seconds();
    }
    const int64_t k_steps = s.merge.calls_per_update();
    compute_gradients({.end = scopes ? scopes->samples() : 0,
                       .is_last = options.is_last || (k_steps > 1 && s.merge.next_is_last()),
                       .window_size = k_steps,
                       .can_restart = false},
                      loss, report);
    report.in_window = true;
    report.samples = scopes ? scopes->samples() : 0;
    ++s.calls;
  };
  const auto report = report_of_call(work, MemoryFrom::kForward);
  s.backward_seconds = report.seconds;
  return report;
}

UpdateReport DistributedOptimizer::step() {
  auto& s = *state_;
  s.window.drop_if_cleared();
  if (!s.window.is_open() && s.comm->size() == 1) {
    throw Error("step", "there is nothing to update with: no backward(loss) since the last update",
                "call optimizer.backward(loss), not loss.backward(), before step()");
  }
  // With its last micro-batch, as the last of the calls of `minimize(closure)`.
  const double last_backward = std::exchange(s.backward_seconds, 0);
  auto report = report_of_call([&](UpdateReport& report) {
    complete_window(report);
    s.log.batch(s.window.samples(), BatchForm::kBackward);
  });
  report.seconds += last_backward;
  return report;
}

std::optional<UpdateReport> DistributedOptimizer::end_epoch() {
  auto& s = *state_;
  std::optional<UpdateReport> last;
  s.window.drop_if_cleared();
  if (s.merge.options().drop_last && s.window.is_open() && !s.window.is_armed()) s.window.drop();
  if (s.window.is_open()) {
    // No call of `minimize`: its samples have been counted.
    s.backward_seconds = 0;
    last = report_of_call([&](UpdateReport& report) {
      complete_window(report);
      s.log.batch(s.window.samples(), BatchForm::kBackward);  // calls have said theirs
    });
  }
  if (s.local) apply_sync(s.local->end_epoch());
  return last;
}

// With the micro-batches that are there.
void DistributedOptimizer::complete_window(UpdateReport& report) {
  auto& s = *state_;
  if (!s.window.is_open()) {
    s.normalizer->open({}, s.is_local());
    s.window.contribute_zeros();
  } else {
    if (!s.window.is_armed()) s.window.arm(s.merge.micro_batches());
    report.micro_batches = s.merge.micro_batches();
  }
  complete(report);
}

void DistributedOptimizer::zero_grad() {
  state_->window.check_not_armed();
  state_->window.clear();
}

void DistributedOptimizer::sync() {
  if (state_->local) apply_sync(state_->local->sync());
}

precision::AutocastScope DistributedOptimizer::autocast() const {
  return precision::AutocastScope(state_->amp ? &state_->amp->autocast() : nullptr);
}

// ---- what it holds

double DistributedOptimizer::lr() const { return state_->optimizer->lr(); }
void DistributedOptimizer::set_lr(double lr) {
  state_->schedule.reset();
  state_->optimizer->set_lr(lr);
}
void DistributedOptimizer::set_schedule(optim::Schedule schedule) {
  log::info("schedule", schedule.describe());
  state_->schedule = std::move(schedule);
}
int64_t DistributedOptimizer::updates() const { return state_->updates(); }
int64_t DistributedOptimizer::skipped_updates() const {
  return state_->amp ? state_->amp->scaler().skipped_total() : 0;
}
int64_t DistributedOptimizer::attempts() const { return state_->attempts(); }
bool DistributedOptimizer::is_in_window() const { return state_->window.is_open(); }
bool DistributedOptimizer::is_stopping() const { return state_->is_stopping; }
void DistributedOptimizer::attach(std::shared_ptr<UpdateHook> hook) {
  state_->attach(std::move(hook));
}
const std::vector<std::shared_ptr<UpdateHook>>& DistributedOptimizer::hooks() const {
  return state_->hooks;
}
TrainingCounters DistributedOptimizer::counters() const { return state_->counters(); }
void DistributedOptimizer::set_counters(const TrainingCounters& counters) {
  state_->set_counters(counters);
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

}  // namespace fleet
