#include "fleet/train/distributed_optimizer.h"

#include <algorithm>
#include <cmath>

#include "fleet/comm/peer_watch.h"
#include "fleet/comm/world.h"
#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/seconds_since.h"
#include "fleet/metrics/step_line.h"
#include "fleet/optim/gradient_health.h"
#include "fleet/optim/gradient_merge.h"
#include "fleet/parallel/sync_batch_norm.h"
#include "fleet/train/auto_micro_batch.h"
#include "fleet/train/batch_arithmetic.h"
#include "fleet/train/hand_over.h"
#include "fleet/train/layer_wise_optimizer.h"
#include "fleet/train/local_sgd_options.h"
#include "fleet/train/loss_normalizer.h"
#include "fleet/train/memory_strategy.h"
#include "fleet/train/mixed_precision.h"
#include "fleet/train/plain_memory.h"
#include "fleet/train/straggler_watch.h"
#include "fleet/train/strategy_check.h"

namespace fleet {
namespace {

using Clock = std::chrono::steady_clock;

// Adds the micro-batch that the report is about to what this call has seen on this rank.
void count_own(UpdateReport& report) {
  if (report.weight == 0) return;
  const double sum = report.own_loss * report.own_weight + report.loss * report.weight;
  report.own_weight += report.weight;
  report.own_loss = sum / report.own_weight;
}

std::vector<std::string> names_of_ranks(const comm::Communicator& comm) {
  std::vector<std::string> names;
  if (comm.watch() == nullptr) return names;
  for (const auto& peer : comm.watch()->peers()) {
    names.push_back(format("rank {} ({}, pid {})", names.size(), peer.host, peer.pid));
  }
  return names;
}

int ranks_on_host(const comm::Communicator& comm) {
  if (comm.watch() == nullptr) return 1;
  const auto& peers = comm.watch()->peers();
  const auto& own = peers.at(static_cast<size_t>(comm.rank())).host_id;
  return static_cast<int>(std::ranges::count(peers, own, &comm::PeerIdentity::host_id));
}

}  // namespace

/// The scopes that strategies put around a forward.
struct DistributedOptimizer::ForwardScope::Scopes {
  Scopes(State& state, int64_t samples);
  /// Before backward: throws what recompute has against the forward.
  void end();
  /// The same where nothing may be thrown; `end` throws it later.
  void end_quietly() noexcept;

  int64_t samples = 0;

 private:
  std::optional<SyncBatchNormScope> sync_batch_norm_;
  std::optional<precision::AutocastScope> autocast_;
  std::optional<MemoryStrategy::Enforced> budget_;
  std::optional<MemoryStrategy::Forward> recorded_;
  std::exception_ptr error_;
};

struct DistributedOptimizer::State {
  std::unique_ptr<optim::Optimizer> optimizer;
  DistributedStrategy strategy;
  std::shared_ptr<comm::Communicator> comm;
  std::shared_ptr<comm::Communicator> norm_comm;  // for sync_batch_norm
  std::unique_ptr<ParameterArena> arena;
  std::unique_ptr<DataParallel> parallel;
  std::unique_ptr<optim::ArenaBlocks> blocks;
  std::unique_ptr<MixedPrecision> amp;        // null: off
  std::unique_ptr<MemoryStrategy> memory;     // null: off
  std::unique_ptr<PlainMemory> plain_memory;  // then
  std::unique_ptr<AutoMicroBatch> micro_batch;
  std::unique_ptr<LocalSgd> local;  // null: off
  std::unique_ptr<StragglerWatch> stragglers;
  std::optional<optim::Schedule> schedule;
  optim::GradientMerge merge;
  std::unique_ptr<LossNormalizer> normalizer;
  int64_t calls = 0;
  int64_t attempts = 0;
  double total_seconds = 0;
  bool is_sending = false;  // what has been sent cannot be taken back
  bool is_armed = false;    // the gradients of this window are complete, or will be with its last
                            // backward
  bool is_stopping = false;
  bool has_said_apart = false;
  bool is_gathering = false;  // a window was opened for `backward`, and holds nothing yet
  std::shared_ptr<ForwardScope::Scopes> forward;  // of the user, for the next `backward`
  bool has_announced = false;                     // the batch arithmetic

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

  void begin_window() {
    arena->begin_window();
    if (amp) amp->open_window();
  }

  // The gradients of the window are complete, or will be with the backward that follows. `parts`:
  // what the user asked for; without avg the update is as many times larger.
  void arm(int64_t parts) {
    normalizer->complete();
    is_armed = true;
    is_sending = comm->size() > 1 && !is_local();
    parallel->listen(normalizer->weight(), normalizer->loss_sum(), static_cast<double>(parts));
  }

  // For the user's own forward and backward.
  void gather() {
    if (merge.is_open() || is_gathering) return;
    micro_batch->open_window();
    normalizer->open({}, is_local());
    begin_window();
    arena->set_arrivals(ParameterArena::Arrivals::kKeepApart);
    is_gathering = true;
  }

  // What a strategy does to a forward, for an error; empty: nothing.
  std::string works_on_forward() const {
    std::string names;
    const auto add = [&](bool is_on, const char* name) {
      if (is_on) names += format("{}{}", names.empty() ? "" : ", ", name);
    };
    add(amp != nullptr, "amp");
    add(memory != nullptr, "recompute");
    add(norm_comm != nullptr, "sync_batch_norm");
    return names;
  }

  void sit_out() {
    normalizer->sit_out();
    arena->begin_window();
    parallel->sit_out();
  }

  // Forgets what the accumulation window has gathered.
  void drop_window() {
    merge.close();
    normalizer->drop();
    arena->forget_window();
    is_gathering = false;
    forward.reset();
  }

  // torch's zero_grad() on the model drops the window, as long as nothing has been sent.
  void take_cleared() {
    if (merge.is_open() && !is_armed && !arena->take_cleared()) drop_window();
  }

  void check_not_armed() const {
    if (!is_armed) return;
    throw Error("gradient_merge",
                format("{} micro-batches are in this window, the last of them among them, and its "
                       "gradients may have been sent",
                       merge.parts()),
                "call step() after the k_steps-th backward; to merge more, raise "
                "gradient_merge_configs.k_steps");
  }

  void check_gradients(const optim::GradientHealth& health) const {
    if (health.is_finite()) return;
    const auto what =
        format("the gradient of '{}' is not finite, though the loss is; nothing was updated",
               arena->spans()[*health.first_bad].name);
    if (strategy.fp16_allreduce && comm->size() > 1 && !is_local()) {
      throw Error("minimize", what,
                  "gradients may have left the range of half (65504) on their way: switch "
                  "fp16_allreduce off; else lower the learning rate, or look for a division by 0");
    }
    throw Error(
        "minimize", what,
        "lower the learning rate, warm it up, or look for a division by 0 or a root of 0 in "
        "the model");
  }

  void say_kept_apart() {
    const auto first = arena->first_kept_apart();
    if (!first || std::exchange(has_said_apart, true)) return;
    log::info("minimize",
              format("a backward outside of this optimizer's own calls reached {} of its {} "
                     "parameters (the first is '{}') while an update was being gathered; such "
                     "gradients are kept out of its updates",
                     arena->kept_apart(), arena->spans().size(), arena->spans()[*first].name));
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
    drop_window();
    is_armed = false;
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

  // Known with the first update: batches come from the program.
  void announce(const UpdateReport& report, BatchForm form) {
    if (has_announced || report.parts == 0) return;
    has_announced = true;
    // A mean counts samples, and gradients that are shared bring the sum over all ranks with them.
    const bool is_agreed = !is_local() && report.own_weight == static_cast<double>(report.samples);
    const BatchArithmetic batch{
        .form = form,
        .samples = report.samples,
        .global_samples = is_agreed ? std::llround(report.weight) : report.samples * comm->size(),
        .micro_batches = report.parts,
        .k_steps = merge.calls_per_update(),
        .ranks = comm->size()};
    log::info("batch", batch.text());
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
    s.memory =
        std::make_unique<MemoryStrategy>(s.strategy.recompute_configs, ranks_on_host(*s.comm));
  } else {
    s.plain_memory = std::make_unique<PlainMemory>();
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
  s.normalizer = std::make_unique<LossNormalizer>(*s.arena, s.comm);
  // Gradients move to memory that the ranks share.
  if (s.memory) s.memory->charge(counted - s.memory->counted(), allocation::kGradients);
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
  auto& s = *state_;
  s.check_not_armed();
  s.take_cleared();
  return report_of_call([&](UpdateReport& report) {
    const Part part{.is_last = s.merge.next_is_last(), .of = s.merge.calls_per_update()};
    if (!s.merge.is_open()) {
      s.micro_batch->open_window();
      s.normalizer->open({}, s.is_local());
    }
    bool done = false;
    while (!done) done = run_one(part, loss, report);
    report.in_window = !part.is_last;
    if (part.is_last) update(report);
    if (part.is_last) s.announce(report, BatchForm::kCalls);
    ++s.calls;
  });
}

UpdateReport DistributedOptimizer::minimize_samples(const BatchShape& shape,
                                                    const SliceLoss& loss) {
  auto& s = *state_;
  s.take_cleared();
  if (shape.samples == 0 && s.strategy.sync_batch_norm) {
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
  const auto cuts = s.micro_batch->cut(s.merge, shape.samples);
  if (cuts.size() > 1 && !shape.can_slice) {
    throw Error("gradient_merge",
                format("this batch of {} samples is to be cut into {} parts, and its type has no "
                       "slice(begin, end)",
                       shape.samples, cuts.size()),
                "give it slice(), or call minimize(closure) once per part");
  }
  return report_of_call([&](UpdateReport& report) {
    s.agree_on_parts(static_cast<int64_t>(cuts.size()));
    s.micro_batch->open_window();
    s.normalizer->open(shape.loss_weights, s.is_local());
    bool done = false;
    while (!done) done = run_all(shape, loss, report);
    report.samples = shape.samples;
    if (cuts.empty()) s.sit_out();
    update(report);
    s.announce(report, BatchForm::kSplit);
    ++s.calls;
  });
}

// False: memory was short, nothing is left of it, and it may fit by another plan. Only at the start
// of a window: what earlier calls brought cannot be told apart any more.
bool DistributedOptimizer::run_one(const Part& part, const std::function<Loss()>& loss,
                                   UpdateReport& report) {
  auto& s = *state_;
  const bool is_first = !s.merge.is_open();
  try {
    run(part, loss, report);
  } catch (const c10::OutOfMemoryError& error) {
    const bool again = is_first && s.memory && s.may_start_again(error) &&
                       s.memory->plan_again(/*can_split=*/false);
    if (!again) throw;
    s.drop_failed_call();
    s.micro_batch->put_back();
    return false;
  }
  return true;
}

// False: memory was short, nothing is left of it, and smaller parts may fit.
bool DistributedOptimizer::run_all(const BatchShape& shape, const SliceLoss& loss,
                                   UpdateReport& report) {
  auto& s = *state_;
  const auto cuts = s.micro_batch->cut(s.merge, shape.samples);
  report.own_loss = report.own_weight = 0;  // of an attempt that failed
  try {
    for (const auto& cut : cuts) {
      run(
          {.weight = static_cast<double>(cut.end - cut.begin),
           .is_last = cut.end == shape.samples,
           .of = static_cast<int64_t>(cuts.size()),
           .samples = cut.end - cut.begin,
           .asked = static_cast<int64_t>(s.merge.cut(shape.samples).size())},
          [&] { return loss(cut.begin, cut.end); }, report);
    }
  } catch (const c10::OutOfMemoryError& error) {
    if (!s.may_start_again(error)) throw;
    const bool can_split = shape.can_slice && AutoMicroBatch::can_split(cuts);
    const bool plan_again = s.memory && s.memory->plan_again(can_split);
    if (!plan_again && !shape.can_slice) throw;
    s.drop_failed_call();
    if (!plan_again) s.micro_batch->shrink(cuts, error);
    s.micro_batch->put_back();
    return false;
  }
  s.micro_batch->close_window(cuts, s.strategy.gradient_merge);
  if (shape.can_slice && s.may_choose_parts()) {
    s.micro_batch->prefer(
        s.memory->quickest_part(s.micro_batch->largest_part(s.merge, shape.samples)));
  }
  return true;
}

std::optional<UpdateReport> DistributedOptimizer::end_epoch() {
  auto& s = *state_;
  std::optional<UpdateReport> last;
  s.take_cleared();
  if (s.merge.options().drop_last && s.merge.is_open() && !s.is_armed) s.drop_window();
  if (s.merge.is_open()) {
    // No call of `minimize`: its samples have been counted.
    last = report_of_call([&](UpdateReport& report) { update_with_what_is_there(report); });
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
  const MemoryStrategy::Enforced budget(s.memory.get());
  if (s.plain_memory) s.plain_memory->begin();
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
  report.call = s.calls;
  report.update = updates();
  report.seconds = seconds_since(begin);
  report.total_seconds = s.total_seconds += report.seconds;
  report.memory = s.memory ? s.memory->report_of_call(report.updated, s.merge.is_open())
                           : s.plain_memory->report(report.updated);
  return report;
}

DistributedOptimizer::ForwardScope::Scopes::Scopes(State& state, int64_t samples)
    : samples(samples),
      sync_batch_norm_(std::in_place, state.norm_comm),
      autocast_(std::in_place, state.amp ? &state.amp->autocast() : nullptr),
      budget_(std::in_place, state.memory.get()),
      recorded_(std::in_place, state.memory.get(), samples) {}

void DistributedOptimizer::ForwardScope::Scopes::end() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (recorded_) recorded_->finish();
  recorded_.reset();
  budget_.reset();
  autocast_.reset();
  sync_batch_norm_.reset();
}

void DistributedOptimizer::ForwardScope::Scopes::end_quietly() noexcept {
  try {
    end();
  } catch (...) {
    recorded_.reset();
    budget_.reset();
    autocast_.reset();
    sync_batch_norm_.reset();
    error_ = std::current_exception();
  }
}

DistributedOptimizer::ForwardScope::ForwardScope(std::shared_ptr<Scopes> scopes)
    : scopes_(std::move(scopes)) {}
DistributedOptimizer::ForwardScope::ForwardScope(ForwardScope&&) noexcept = default;
DistributedOptimizer::ForwardScope::~ForwardScope() {
  if (scopes_) scopes_->end_quietly();
}

DistributedOptimizer::ForwardScope DistributedOptimizer::forward(int64_t samples) {
  auto& s = *state_;
  s.check_not_armed();
  s.take_cleared();
  s.gather();
  s.forward.reset();  // of a forward whose loss was not used
  s.forward = std::make_shared<ForwardScope::Scopes>(s, samples);
  return ForwardScope(s.forward);
}

UpdateReport DistributedOptimizer::backward(const Loss& loss, const BackwardOptions& options) {
  auto& s = *state_;
  s.check_not_armed();
  s.take_cleared();
  return report_of_call([&](UpdateReport& report) {
    const auto scopes = std::exchange(s.forward, nullptr);
    const auto names = s.works_on_forward();
    if (!scopes && !names.empty()) {
      throw Error("backward",
                  format("the strategy has {}, and the forward of this loss was outside of their "
                         "scope",
                         names),
                  "compute each loss inside `const auto scope = optimizer.forward();`");
    }
    s.gather();
    s.is_gathering = false;
    if (scopes) scopes->end();
    const int64_t k_steps = s.merge.calls_per_update();
    const bool is_last = options.is_last || (k_steps > 1 && s.merge.next_is_last());
    run_backward({.is_last = is_last, .of = k_steps, .samples = scopes ? scopes->samples : 0}, loss,
                 report);
    report.in_window = true;
    ++s.calls;
  });
}

UpdateReport DistributedOptimizer::step() {
  auto& s = *state_;
  s.take_cleared();
  if (!s.merge.is_open() && s.comm->size() == 1) {
    throw Error("step", "there is nothing to update with: no backward(loss) since the last update",
                "call optimizer.backward(loss), not loss.backward(), before step()");
  }
  return report_of_call([&](UpdateReport& report) {
    if (!s.merge.is_open()) {
      s.normalizer->open({}, s.is_local());
      s.sit_out();
      update(report);
    } else {
      update_with_what_is_there(report);
    }
    s.announce(report, BatchForm::kCalls);
  });
}

void DistributedOptimizer::update_with_what_is_there(UpdateReport& report) {
  auto& s = *state_;
  if (!s.is_armed) s.arm(s.merge.parts());
  report.parts = s.merge.parts();
  update(report);
}

void DistributedOptimizer::zero_grad() {
  auto& s = *state_;
  s.check_not_armed();
  s.drop_window();
}

// One micro-batch: gradients land in the arena; the last one of a window sends them while backward
// runs.
void DistributedOptimizer::run(const Part& part, const std::function<Loss()>& loss,
                               UpdateReport& report) {
  auto& s = *state_;
  if (!s.merge.is_open()) s.begin_window();
  s.arena->set_arrivals(ParameterArena::Arrivals::kRefuse);
  ForwardScope::Scopes scopes(s, part.samples);
  const auto value = loss();
  scopes.end();
  run_backward(part, value, report);
}

void DistributedOptimizer::run_backward(const Part& part, const Loss& value, UpdateReport& report) {
  auto& s = *state_;
  const auto loss = read_loss(value, part.weight, part.samples);
  const double mean = loss.mean();
  // With amp all ranks skip the update together.
  if (!std::isfinite(mean) && !s.amp) {
    throw Error("minimize",
                format("the loss is {} at update {} on rank {}; nothing was updated", mean,
                       updates() + 1, s.comm->rank()),
                "lower the learning rate, warm it up, or look for bad samples");
  }
  s.merge.add();
  s.normalizer->add(loss, part.is_last, part.of);
  const bool overlap = s.micro_batch->may_overlap(part.samples);
  const int64_t asked = part.asked > 0 ? part.asked : s.merge.parts();
  if (part.is_last && overlap) s.arm(asked);
  s.arena->set_arrivals(ParameterArena::Arrivals::kCollect);
  if (s.normalizer->must_keep_apart()) {
    s.normalizer->keep_apart(loss, s.loss_scale());
  } else {
    s.normalizer->scaled(loss, s.loss_scale()).backward();
  }
  s.arena->set_arrivals(ParameterArena::Arrivals::kKeepApart);
  if (s.memory) s.memory->end_backward();
  if (part.is_last && !overlap) s.arm(asked);
  report.parts = s.merge.parts();
  report.weight = loss.weight;
  report.loss = mean;
  count_own(report);
}

void DistributedOptimizer::update(UpdateReport& report) {
  auto& s = *state_;
  const auto reduced = s.parallel->wait();
  if (!s.is_local()) check_all_present(*s.comm, "before local SGD began (begin_step)");
  s.merge.close();
  s.is_armed = false;
  s.is_gathering = false;  // by a forward() whose loss no backward got
  s.say_kept_apart();
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
  report.loss = s.normalizer->mean_loss(reduced.loss, reduced.weight);
  report.weight = reduced.weight;

  // From what lies in the arena to the gradient of the mean loss, or of the sum of the parts'
  // means.
  optim::StepInput input{.gradient_scale =
                             s.normalizer->correction(reduced.weight) / s.loss_scale()};
  if (!s.merge.options().avg) input.gradient_scale *= reduced.parts / reduced.ranks;
  s.blocks->choose(reduced.used);
  const auto health = optim::gradient_health(*s.arena, *s.blocks);
  // Sums are the same on all ranks that share them, and so is what is decided here.
  if (s.amp && !(health.is_finite() && std::isfinite(report.loss))) {
    report.skipped = true;
    return s.amp->skip(
        *s.arena,
        {.update = updates() + 1,
         .loss = report.loss,
         .gradient = health.first_bad ? s.arena->spans()[*health.first_bad].name : std::string(),
         .is_local = s.is_local()});
  }
  s.check_gradients(health);
  input.gradient_norm = health.norm;
  input.block_sums = health.block_sums;
  report.gradient_norm = health.norm * input.gradient_scale;
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
          .usual_weight = s.normalizer->agreed().usual_weight,
          .loss_terms = s.normalizer->agreed().terms,
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
  s.normalizer->set_agreed({.usual_weight = counters.usual_weight, .terms = counters.loss_terms});
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
