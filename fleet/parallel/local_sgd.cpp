// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/local_sgd.h"

#include <algorithm>
#include <chrono>

#include "fleet/comm/elastic/elastic_group.h"
#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/process/stop_request.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"

namespace fleet {
namespace {

using Clock = std::chrono::steady_clock;

void check(const LocalSgdOptions& options) {
  if (options.k_steps < 1 || options.begin_step < 1) {
    throw UsageError(
        "local_sgd",
        format("k_steps is {} and begin_step is {}", options.k_steps, options.begin_step),
        "both count updates, from 1");
  }
  if (options.delayed && options.optimizer_state == StateAtSync::kAverage) {
    throw UsageError(
        "local_sgd",
        "a delayed average of the optimizer's state would undo what it has learned since",
        "keep the state local, or do not delay");
  }
}

void check_joined(const comm::Communicator& comm) {
  if (!comm.elastic() || !comm.elastic()->is_joining()) return;
  throw Error(
      "elastic",
      format("rank {} rejoined a training that has continued, and was not admitted", comm.rank()),
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
      outer_(arena, options.outer),
      wire_(comm_->size(), buffers_.counter_count(), buffers_.sum_count()) {
  check(options_);
  // What runs behind training must not meet other calls.
  if (options_.delayed) comm_ = comm_->duplicate("local_sgd");
  if (options_.adaptive) interval_.emplace(*options_.adaptive);
  const AllocationTag tag(allocation::kLocalSgd);
  anchor_ = arena_.make_state();
  change_ = arena_.make_state();
  if (options_.delayed) sent_ = arena_.make_state();
  before_step();
}

LocalSgd::~LocalSgd() {
  if (unsynced_steps() == 0 || comm_->size() == 1 || std::uncaught_exceptions() > 0) return;
  log::warn_here("local_sgd",
                 format("the last {} of this rank are in no average: call end_epoch() on "
                        "all ranks before the model is evaluated, saved or destroyed",
                        plural(unsynced_steps(), "update")));
}

void LocalSgd::before_step() {
  const torch::NoGradGuard no_grad;
  if (window_.steps > 0 || pending_) return;
  arena_.refresh_masters();
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
  if (!options_.delayed) return exchange(SyncPoint::kStep);
  SyncReport report;
  if (pending_) report = receive(ApplyMode::kDelayed);
  send(SyncPoint::kStep);
  return report;
}

// What all ranks have in common must be so before an exact exchange.
void LocalSgd::close_window() {
  if (!pending_) {
    before_step();
  } else {
    receive(ApplyMode::kDelayed);
  }
}

SyncReport LocalSgd::sync() {
  if (!is_local()) return {};
  close_window();
  return exchange(SyncPoint::kSync);
}

SyncReport LocalSgd::end_epoch() {
  if (!is_local()) return {};
  close_window();
  SyncReport report;
  while (!report.all_ended) {
    const auto next = exchange(SyncPoint::kEpochEnd);
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

SyncReport LocalSgd::exchange(SyncPoint point) {
  const auto begin = Clock::now();
  send(point);
  auto report = receive(ApplyMode::kExact);
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

void LocalSgd::send(SyncPoint point) {
  check_joined(*comm_);
  const torch::NoGradGuard no_grad;
  arena_.refresh_masters();
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
  const auto steps = static_cast<double>(window_.steps);
  wire_.write(comm_->rank(),
              {.step = step_,
               .steps = window_.steps,
               .weight = window_.weight,
               .loss_sum = window_.loss_sum,
               .lr = window_.lr,
               .updates = window_.updates,
               .ended = point == SyncPoint::kEpochEnd,
               .in_step = point == SyncPoint::kStep,
               .stop = stop_requested(),
               .compute_seconds = window_.steps > 0 ? window_.compute_seconds / steps : 0});
  buffers_.write(window_.weight, wire_.buffer_sums(), wire_.counters(comm_->rank()));

  std::vector<torch::Tensor> sent = {wire_.tensor()};
  sent.insert(sent.end(), change_.begin(), change_.end());
  if (options_.optimizer_state == StateAtSync::kAverage) {
    sent_state_.clear();
    for (const auto& state : optimizer_state_) sent_state_.push_back(state * window_.weight);
    sent.insert(sent.end(), sent_state_.begin(), sent_state_.end());
  }
  pending_ = comm_->all_reduce_coalesced(sent, comm::ReduceOp::kSum, "local SGD's average");
  sent_steps_ = window_.steps;
  window_ = {.updates = window_.updates};
}

SyncReport LocalSgd::receive(ApplyMode mode) {
  const torch::NoGradGuard no_grad;
  const auto begin = Clock::now();
  pending_->wait();
  pending_.reset();
  sent_steps_ = 0;

  const auto rows = wire_.read();
  const auto& all = rows.total;
  SyncReport report{.synced = true,
                    .loss = all.weight > 0 ? all.loss_sum / all.weight : 0,
                    .weight = all.weight,
                    .updates = all.updates,
                    .all_ended = rows.all_ended,
                    .stop = rows.any_stop && (rows.all_ended || rows.none_ended),
                    .steps = all.steps,
                    .compute_seconds = rows.compute_seconds};
  is_in_step_ = rows.all_in_step;
  step_ = std::max(step_, all.step);
  if (all.weight > 0) {
    for (const auto& change : change_) change.div_(all.weight);
    outer_.step(anchor_, change_, all.lr);
    for (size_t g = 0; g < anchor_.size(); ++g) {  // what parameters of low precision can hold
      const auto dtype = arena_.groups()[g].values.scalar_type();
      if (dtype != anchor_[g].scalar_type()) anchor_[g].copy_(anchor_[g].to(dtype));
    }
    buffers_.read(wire_.buffer_sums() / all.weight, wire_.largest_counters());
    sync_optimizer_state(all.weight);
    choose_interval(all);
  }
  if (all.steps > 0 || is_corrected_) apply_average(mode);
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

void LocalSgd::apply_average(ApplyMode mode) {
  for (size_t g = 0; g < anchor_.size(); ++g) {
    const auto& values = arena_.groups()[g].values;
    if (mode == ApplyMode::kExact) {
      values.copy_(anchor_[g]);
    } else {
      values.add_(torch::sub_out(change_[g], anchor_[g], sent_[g]));
    }
  }
  arena_.values_written();
  is_corrected_ = mode == ApplyMode::kDelayed;
  if (mode == ApplyMode::kExact) buffers_.apply();
}

void LocalSgd::sync_optimizer_state(double weight) {
  for (size_t i = 0; i < optimizer_state_.size(); ++i) {
    if (options_.optimizer_state == StateAtSync::kAverage) {
      optimizer_state_[i].copy_(sent_state_[i].div_(weight));
    } else if (options_.optimizer_state == StateAtSync::kReset) {
      optimizer_state_[i].zero_();
    }
  }
}

void LocalSgd::choose_interval(const LocalSgdRow& window) {
  if (!interval_) return;
  const int before = interval_->k_steps();
  interval_->observe(
      {.loss = window.loss_sum / window.weight, .updates = window.steps, .lr = window.lr});
  const int now = interval_->choose();
  if (now != before) {
    log::info("local_sgd", format("update {}: averages every {} from here on, so far every {}",
                                  window.updates, plural(now, "update"), before));
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
          field<&W::weight>("weight", "weight of their samples").at_least(0),
          field<&W::loss_sum>("loss_sum", "their losses, weighted"),
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
