#include "fleet/parallel/local_sgd.h"

#include <algorithm>
#include <chrono>

#include "fleet/comm/elastic_group.h"
#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/stop_request.h"

namespace fleet {
namespace {

using Clock = std::chrono::steady_clock;

// What a rank tells of its window; its counters follow.
enum RowSlot {
  kStep,
  kSteps,
  kWeight,
  kLossSum,
  kLr,
  kUpdates,
  kEnded,
  kInStep,
  kPresent,
  kStop,
  kComputeSeconds,
  kRowSlots
};

void check(const LocalSgdOptions& options) {
  if (options.k_steps < 1 || options.begin_step < 1) {
    throw Error("local_sgd",
                format("k_steps is {} and begin_step is {}", options.k_steps, options.begin_step),
                "both count updates, from 1");
  }
  if (options.delayed && options.optimizer_state == StateAtSync::kAverage) {
    throw Error("local_sgd",
                "a delayed average of the optimizer's state would undo what it has learned since",
                "keep the state local, or do not delay");
  }
}

void check_joined(const comm::Communicator& comm) {
  if (!comm.elastic() || !comm.elastic()->is_joining()) return;
  throw Error("elastic",
              format("rank {} came back to a training that has gone on, and has not joined it",
                     comm.rank()),
              "make fleet::Snapshots, with the data, before the first update");
}

}  // namespace

LocalSgd::LocalSgd(ParameterArena& arena, const ModelHandle& model,
                   std::shared_ptr<comm::Communicator> comm, const LocalSgdOptions& options,
                   std::vector<torch::Tensor> optimizer_state)
    : arena_(arena),
      comm_(std::move(comm)),
      options_(options),
      optimizer_state_(std::move(optimizer_state)),
      buffers_(model),
      outer_(arena, options.outer) {
  check(options_);
  // What runs behind training must not meet other calls.
  if (options_.delayed) comm_ = comm_->duplicate("local_sgd");
  if (options_.adaptive) interval_.emplace(*options_.adaptive);
  const AllocationTag tag(allocation::kLocalSgd);
  anchor_ = arena_.make_state();
  change_ = arena_.make_state();
  if (options_.delayed) sent_ = arena_.make_state();
  head_ =
      torch::zeros({comm_->size() * (kRowSlots + buffers_.counter_count()) + buffers_.sum_count()},
                   torch::kDouble);
  before_step();
}

LocalSgd::~LocalSgd() {
  if (unsynced_steps() == 0 || comm_->size() == 1 || std::uncaught_exceptions() > 0) return;
  log::warn_here("local_sgd",
                 format("the last {} updates of this rank are in no average: call end_epoch() on "
                        "all ranks before the model is evaluated, saved or given up",
                        unsynced_steps()));
}

void LocalSgd::before_step() {
  const torch::NoGradGuard no_grad;
  if (window_.steps > 0 || pending_) return;
  arena_.take_written();
  for (size_t g = 0; g < anchor_.size(); ++g) anchor_[g].copy_(arena_.groups()[g].values);
}

SyncReport LocalSgd::after_step(const LocalStep& step) {
  const bool is_local = this->is_local();
  ++step_;
  if (!is_local) {  // what the ranks know is the same already
    if (interval_) interval_->observe({.loss = step.loss, .lr = step.lr});
    return {};
  }
  ++window_.steps;
  if (step.weight > 0) {
    window_.weight += step.weight;
    window_.loss_sum += step.weight * step.loss;
  }
  window_.lr = step.lr;
  window_.updates = step.updates;
  window_.compute_seconds += step.compute_seconds;
  if (window_.steps < k_steps()) return {};
  if (!options_.delayed) return exchange(Place::kStep);
  SyncReport report;
  if (pending_) report = receive(Arrival::kDelayed);
  send(Place::kStep);
  return report;
}

// What all ranks have in common must be so before an exact exchange.
void LocalSgd::close_window() {
  if (!pending_) {
    before_step();
  } else {
    receive(Arrival::kDelayed);
  }
}

SyncReport LocalSgd::sync() {
  if (!is_local()) return {};
  close_window();
  return exchange(Place::kSync);
}

SyncReport LocalSgd::end_epoch() {
  if (!is_local()) return {};
  close_window();
  SyncReport report;
  while (!report.all_ended) {
    const auto next = exchange(Place::kEpochEnd);
    report = {.synced = true,
              .loss = next.weight > 0 ? next.loss : report.loss,
              .weight = next.weight > 0 ? next.weight : report.weight,
              .updates = next.updates,
              .all_ended = next.all_ended,
              .seconds = report.seconds + next.seconds,
              .stop = next.stop};
  }
  return report;
}

SyncReport LocalSgd::exchange(Place place) {
  const auto begin = Clock::now();
  send(place);
  auto report = receive(Arrival::kExact);
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

void LocalSgd::send(Place place) {
  check_joined(*comm_);
  const torch::NoGradGuard no_grad;
  arena_.take_written();
  for (size_t g = 0; g < change_.size(); ++g) {
    const auto& values = arena_.groups()[g].values;
    if (window_.weight > 0) {
      torch::sub_out(change_[g], values, anchor_[g]);
      change_[g].mul_(window_.weight);
    } else {
      change_[g].zero_();
    }
    if (options_.delayed) sent_[g].copy_(values);
  }
  head_.zero_();
  const int64_t row_length = kRowSlots + buffers_.counter_count();
  const auto row = head_.narrow(0, comm_->rank() * row_length, row_length);
  auto* const slots = row.data_ptr<double>();
  slots[kStep] = static_cast<double>(step_);
  slots[kSteps] = static_cast<double>(window_.steps);
  slots[kWeight] = window_.weight;
  slots[kLossSum] = window_.loss_sum;
  slots[kLr] = window_.lr;
  slots[kUpdates] = static_cast<double>(window_.updates);
  slots[kEnded] = place == Place::kEpochEnd ? 1 : 0;
  slots[kInStep] = place == Place::kStep ? 1 : 0;
  slots[kPresent] = 1;
  slots[kStop] = stop_requested() ? 1 : 0;
  if (window_.steps > 0) {
    slots[kComputeSeconds] = window_.compute_seconds / static_cast<double>(window_.steps);
  }
  buffers_.write(window_.weight, head_.narrow(0, comm_->size() * row_length, buffers_.sum_count()),
                 row.narrow(0, kRowSlots, buffers_.counter_count()));

  std::vector<torch::Tensor> sent = {head_};
  sent.insert(sent.end(), change_.begin(), change_.end());
  if (options_.optimizer_state == StateAtSync::kAverage) {
    sent_state_.clear();
    for (const auto& state : optimizer_state_) sent_state_.push_back(state * window_.weight);
    sent.insert(sent.end(), sent_state_.begin(), sent_state_.end());
  }
  pending_ = comm_->all_reduce_together(sent, comm::ReduceOp::kSum, "local SGD's average");
  sent_steps_ = window_.steps;
  window_ = {.updates = window_.updates};
}

SyncReport LocalSgd::receive(Arrival arrival) {
  const torch::NoGradGuard no_grad;
  const auto begin = Clock::now();
  pending_->wait();
  pending_.reset();
  sent_steps_ = 0;

  const int64_t row_length = kRowSlots + buffers_.counter_count();
  const auto seats = head_.narrow(0, 0, comm_->size() * row_length).view({-1, row_length});
  const auto rows = seats.index({seats.select(1, kPresent) > 0});  // others are lost
  const auto sum_of = [&](RowSlot slot) { return rows.select(1, slot).sum().item<double>(); };
  const auto most_of = [&](RowSlot slot) { return rows.select(1, slot).max().item<double>(); };
  const Window all{.steps = static_cast<int64_t>(most_of(kSteps)),
                   .weight = sum_of(kWeight),
                   .loss_sum = sum_of(kLossSum),
                   .lr = most_of(kLr),
                   .updates = static_cast<int64_t>(most_of(kUpdates))};
  SyncReport report{.synced = true,
                    .loss = all.weight > 0 ? all.loss_sum / all.weight : 0,
                    .weight = all.weight,
                    .updates = all.updates,
                    .all_ended = rows.select(1, kEnded).min().item<double>() > 0,
                    .steps = all.steps};
  const bool none_ended = most_of(kEnded) == 0;
  report.stop = sum_of(kStop) > 0 && (report.all_ended || none_ended);
  const auto compute_seconds = seats.select(1, kComputeSeconds).contiguous();
  report.compute_seconds.assign(compute_seconds.data_ptr<double>(),
                                compute_seconds.data_ptr<double>() + comm_->size());
  is_in_step_ = rows.select(1, kInStep).min().item<double>() > 0;
  step_ = std::max(step_, static_cast<int64_t>(most_of(kStep)));
  if (all.weight > 0) {
    for (const auto& change : change_) change.div_(all.weight);
    outer_.step(anchor_, change_, all.lr);
    for (size_t g = 0; g < anchor_.size(); ++g) {  // what parameters of low precision can hold
      const auto dtype = arena_.groups()[g].values.scalar_type();
      if (dtype != anchor_[g].scalar_type()) anchor_[g].copy_(anchor_[g].to(dtype));
    }
    buffers_.read(head_.narrow(0, comm_->size() * row_length, buffers_.sum_count()) / all.weight,
                  std::get<0>(rows.narrow(1, kRowSlots, buffers_.counter_count()).max(0)));
    settle_optimizer_state(all.weight);
    choose_interval(all);
  }
  if (all.steps > 0 || is_corrected_) give_values(arrival);
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

void LocalSgd::give_values(Arrival arrival) {
  for (size_t g = 0; g < anchor_.size(); ++g) {
    const auto& values = arena_.groups()[g].values;
    if (arrival == Arrival::kExact) {
      values.copy_(anchor_[g]);
    } else {
      values.add_(torch::sub_out(change_[g], anchor_[g], sent_[g]));
    }
  }
  arena_.values_written();
  is_corrected_ = arrival == Arrival::kDelayed;
  if (arrival == Arrival::kExact) buffers_.apply();
}

void LocalSgd::settle_optimizer_state(double weight) {
  for (size_t i = 0; i < optimizer_state_.size(); ++i) {
    if (options_.optimizer_state == StateAtSync::kAverage) {
      optimizer_state_[i].copy_(sent_state_[i].div_(weight));
    } else if (options_.optimizer_state == StateAtSync::kReset) {
      optimizer_state_[i].zero_();
    }
  }
}

void LocalSgd::choose_interval(const Window& window) {
  if (!interval_) return;
  const int before = interval_->k_steps();
  interval_->observe(
      {.loss = window.loss_sum / window.weight, .updates = window.steps, .lr = window.lr});
  const int now = interval_->choose();
  if (now != before) {
    log::info("local_sgd", format("update {}: averages every {} updates from here on, so far {}",
                                  window.updates, now, before));
  }
}

LocalSgd::State LocalSgd::state() const {
  if (pending_) {
    throw Error("local_sgd", "a delayed average is under way, and its outcome is not known yet",
                "call sync() on all ranks before a snapshot");
  }
  return {.step = step_,
          .window = window_,
          .interval = interval_ ? interval_->state() : AdaptiveInterval::State{},
          .anchor = anchor_,
          .velocity = outer_.velocity(),
          .buffers = buffers_.common()};
}

void LocalSgd::set_state(const State& state) {
  const torch::NoGradGuard no_grad;
  FLEET_ASSERT(!pending_, "set_state() while an average is under way");
  step_ = state.step;
  window_ = state.window;
  if (interval_) interval_->set_state(state.interval);
  const auto copy = [](const std::vector<torch::Tensor>& from,
                       const std::vector<torch::Tensor>& to) {
    FLEET_ASSERT(from.size() == to.size(), "the state of another model");
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  };
  copy(state.anchor, anchor_);
  copy(state.velocity, outer_.velocity());
  buffers_.set_common(state.buffers);
}

const FieldList& fields_of(const LocalSgd::Window*) {
  using W = LocalSgd::Window;
  static const FieldList list{
      .area = "local_sgd",
      .fields = {
          field<&W::steps>("steps", "updates since the last average").at_least(0),
          field<&W::weight>("weight", "what they learned from").at_least(0),
          field<&W::loss_sum>("loss_sum", "their losses, weighed"),
          field<&W::lr>("lr", "rate of the last of them"),
          field<&W::updates>("updates", "of the optimizer at that time").at_least(0),
      }};
  return list;
}

const FieldList& fields_of(const LocalSgd::State*) {
  using S = LocalSgd::State;
  static const FieldList list{
      .area = "local_sgd",
      .fields = {
          field<&S::step>("step", "updates so far, synchronous ones among them").at_least(0),
          field<&S::window>("window", "since the last average"),
          field<&S::interval>("interval", "of adaptive local SGD"),
      }};
  return list;
}

}  // namespace fleet
