// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/accumulation_window.h"

#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"

namespace fleet {

void AccumulationWindow::open(const std::vector<double>& loss_weights) {
  if (is_open()) return;
  stack_.micro_batch->open_window();
  stack_.normalizer->open(loss_weights, stack_.is_local());
}

void AccumulationWindow::begin() {
  if (is_open()) return;
  stack_.arena->begin_window();
  stack_.window_samples = 0;
  samples_ = {};
  if (stack_.amp) stack_.amp->open_window();
  state_ = State::kEmpty;
}

void AccumulationWindow::begin_for_backward() {
  if (state_ != State::kClosed) return;
  open({});
  begin();
  stack_.arena->set_gradient_policy(ParameterArena::GradientPolicy::kDiscard);
}

void AccumulationWindow::add(int64_t samples) {
  FLEET_ASSERT(state_ == State::kEmpty || state_ == State::kOpen,
               "a micro-batch is added to a window that has begun and is not armed");
  stack_.merge.add();
  samples_.add(samples);
  state_ = State::kOpen;
}

void AccumulationWindow::arm(int64_t requested) {
  FLEET_ASSERT(state_ == State::kOpen, "a window is armed once, with a micro-batch in it");
  stack_.normalizer->complete();
  state_ = State::kArmed;
  stack_.parallel->arm({.weight = stack_.normalizer->weight(),
                        .loss = stack_.normalizer->loss_sum(),
                        .micro_batches = static_cast<double>(requested),
                        .samples = samples_.is_known ? std::optional(samples_.sum) : std::nullopt,
                        .is_resized = stack_.sample_offsets.is_resized()});
}

void AccumulationWindow::contribute_zeros() {
  stack_.normalizer->sit_out();
  stack_.arena->begin_window();
  samples_ = {};
  stack_.parallel->contribute_zeros(stack_.sample_offsets.is_resized());
  state_ = State::kArmed;
}

void AccumulationWindow::close() {
  stack_.merge.close();
  state_ = State::kClosed;
}

void AccumulationWindow::drop() {
  stack_.merge.close();
  stack_.normalizer->drop();
  if (stack_.memory) stack_.memory->drop_window();
  if (stack_.plain_memory) stack_.plain_memory->drop_window();
  stack_.arena->forget_window();
  forward.reset();
  state_ = State::kClosed;
}

void AccumulationWindow::clear() {
  auto pending = std::exchange(forward, nullptr);
  drop();
  if (!pending) return;
  // Without another copy of the buffers: that forward has moved them.
  stack_.arena->begin_window();
  stack_.arena->set_gradient_policy(ParameterArena::GradientPolicy::kDiscard);
  samples_ = {};
  state_ = State::kEmpty;
  forward = std::move(pending);
}

void AccumulationWindow::drop_if_cleared() {
  if (is_open() && !is_armed() && !stack_.arena->drop_cleared()) clear();
}

void AccumulationWindow::abandon() noexcept {
  drop();
  try {
    compat::flush_failed_backward();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory for that either
  }
  if (stack_.memory) stack_.memory->forget();
}

void AccumulationWindow::check_closed() const {
  if (!is_open()) return;
  throw Error("gradient_merge",
              format("{} of {} calls of minimize(closure) wait for their update, and "
                     "minimize(batch, closure) is one of its own",
                     stack_.merge.micro_batches(), stack_.merge.calls_per_update()),
              "call end_epoch() first, or use one of the two");
}

void AccumulationWindow::check_not_armed() const {
  if (!is_armed()) return;
  throw Error("gradient_merge",
              format("{} micro-batches are in this window, the last of them among them, and its "
                     "gradients may have been sent",
                     stack_.merge.micro_batches()),
              "call step() after the k_steps-th backward; to merge more, raise "
              "gradient_merge_configs.k_steps");
}

}  // namespace fleet
