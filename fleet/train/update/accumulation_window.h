// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fleet/train/update/batch_arithmetic.h"
#include "fleet/train/update/forward_scopes.h"
#include "fleet/train/update/training_stack.h"

namespace fleet {

/// The gradients of one update, from its first micro-batch to their reduction.
///
///   kClosed -> kEmpty   begin, begin_for_backward
///   kEmpty  -> kOpen    add: the arena holds gradients of at least one micro-batch
///   kOpen   -> kArmed   arm: they are complete, or will be with the backward that runs; with
///                       several ranks they are sent from here on and cannot be taken back
///   kClosed -> kArmed   contribute_zeros: this rank has no samples, and takes part with zeros
///   kArmed  -> kClosed  close, after the reduction
///   any     -> kClosed  drop, abandon
///
/// Not for several threads.
class AccumulationWindow {
 public:
  enum class State { kClosed, kEmpty, kOpen, kArmed };

  explicit AccumulationWindow(TrainingStack& stack) : stack_(stack) {}

  bool is_open() const { return stack_.merge.is_open(); }
  bool is_armed() const { return state_ == State::kArmed; }
  /// Other ranks may have got some of it.
  bool is_sending() const { return is_armed() && stack_.shares_gradients(); }

  /// Before the first micro-batch of a call.
  void open(const std::vector<double>& loss_weights);
  /// Gradients of the next backward are collected.
  void begin();
  /// For the user's own forward and backward: gradients are collected in `backward` only.
  void begin_for_backward();
  /// One more micro-batch; 0 samples: not known.
  void add(int64_t samples);
  /// `requested`: the micro-batches that the user asked for; without gradient_merge's avg the
  /// update is as many times larger.
  void arm(int64_t requested);
  void contribute_zeros();
  void close();

  /// Of the window that is open, or was the last.
  const WindowSamples& samples() const { return samples_; }

  /// Drops the gradients of the window.
  void drop();
  /// The same, but for a forward whose backward is still to come.
  void clear();
  /// torch's zero_grad() on the model drops the window, as long as nothing has been sent.
  void drop_if_cleared();
  /// After a call that failed: drops the window, the graph of a failed backward and what it holds.
  void abandon() noexcept;
  /// Throws where calls of `minimize(closure)` wait for their update.
  void check_closed() const;
  void check_not_armed() const;

  /// Of the user's forward, for the next `backward`.
  std::shared_ptr<ForwardScopes> forward;

 private:
  TrainingStack& stack_;
  State state_ = State::kClosed;
  WindowSamples samples_;
};

}  // namespace fleet
