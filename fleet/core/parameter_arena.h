// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include <torch/types.h>

#include "fleet/core/arena_layout.h"
#include "fleet/core/model_handle.h"
#include "fleet/core/torch/gradient_hook.h"

namespace fleet {

/// Holds a model's trainable parameters and their gradients in flat, 64-byte aligned buffers; the
/// model's tensors become views of it, strides kept, so that channels-last stays channels-last.
/// Reducing, averaging, clipping and updating are then single passes over memory, without gathering
/// or scattering.
///
/// Gradients are written to the arena while backward runs: the first of a window is copied in from
/// the tensor that autograd made (cheaper than zeroing and adding), later ones are added in place
/// by autograd itself. Gradients of working copies are added up in float too: their `grad()` is a
/// float tensor.
///
/// A window collects every gradient that arrives between `begin_window` and `end_window`, or, with
/// `set_gradient_policy`, only those of the caller's own backwards: a backward of another optimizer
/// that runs through this model then leaves the window as it was. torch's `zero_grad()` inside a
/// window drops what is ready.
///
/// In-place writes to parameters are never lost: where a parameter is a working copy, what was
/// written to it is copied to its master (`refresh_masters`) before that is read.
///
/// In front of the last group's gradients lies the metadata: a few floats that ranks sum together
/// with the gradients at no extra cost (weights, losses, and one flag per parameter: did it get a
/// gradient?).
///
///   ParameterArena arena(net);
///   arena.begin_window();
///   loss.backward();
///   arena.end_window();
///   arena.groups()[0].values.sub_(arena.groups()[0].gradients, 0.1);
class ParameterArena {
 public:
  explicit ParameterArena(const ModelHandle& model, const ArenaOptions& options = {});
  ~ParameterArena();
  ParameterArena(const ParameterArena&) = delete;
  ParameterArena& operator=(const ParameterArena&) = delete;

  std::span<const ArenaGroup> groups() const { return groups_; }
  std::span<const ArenaSpan> spans() const { return spans_; }
  const std::vector<NamedTensor>& frozen() const { return frozen_; }
  int64_t numel() const { return numel_; }

  /// Moves the gradients to `memory` (zeroed, aligned to 64 bytes, `gradient_bytes()` long), which
  /// `owner` keeps alive: memory that other ranks see, for instance. Values and state stay where
  /// they are.
  int64_t gradient_bytes() const;
  void place_gradients(void* memory, const std::shared_ptr<void>& owner);

  /// Zeroed buffers of the groups' lengths, for optimizer state: double for double, else float.
  std::vector<torch::Tensor> make_state() const;

  /// After `values` were written from outside: rounds masters into the working copies, and
  /// increments the parameters' version counters, so that what was derived from them is stale.
  void values_written();
  /// The reverse, before `values` are read: masters take the elements of working copies that were
  /// written in place. One pass over both; nothing to do without working copies.
  void refresh_masters() const;
  void refresh_masters(size_t span) const;

  /// Forgets all gradients: `grad()` is undefined until the next backward, as after torch's own
  /// zero_grad. Gradients are accumulated from here on.
  void begin_window();
  /// The same, without a window: the model is as torch has it until the next.
  void forget_window() noexcept;

  /// What happens to a gradient that arrives inside a window.
  enum class GradientPolicy {
    kAccumulate,  // it belongs to the window
    kDiscard,     // it is of another optimizer's backward: dropped, and counted
    kReject,  // likewise, inside a loss closure: an Error. `grad()` is hidden meanwhile, so that
              // a zero_grad() there, as torch's closures have it, clears nothing
  };
  void set_gradient_policy(GradientPolicy policy);
  /// How many spans had a gradient discarded since `begin_window`.
  size_t discarded() const { return discarded_.size(); }
  std::optional<size_t> first_discarded() const;
  /// Drops what torch's zero_grad() has cleared since it was written; false when nothing is left of
  /// a window that had something.
  bool drop_cleared();

  /// Makes the gradients whole: zeros where none came, `grad()` a view of the arena everywhere.
  /// Throws when a `grad()` was replaced after backward, for then the arena no longer holds
  /// the gradient.
  void end_window();

  bool has_gradient(size_t span) const { return is_ready_[span]; }
  /// Adds to what is ready in this window.
  void add_gradient(size_t span, const torch::Tensor& gradient);

  /// `on_ready(span)` runs inside backward each time a gradient is ready, under a lock: one at a
  /// time.
  void set_on_gradient_ready(std::function<void(size_t)> on_ready);

  /// Metadata: floats in front of the last group's gradients: `kMetadataScalars` for the update,
  /// then one per span, then `ArenaOptions::metadata_slots`.
  torch::Tensor metadata() const { return metadata_; }
  int64_t metadata_slots() const { return options_.metadata_slots; }
  /// The metadata and the first `elements` of the last group's gradients as one tensor, to be
  /// reduced together.
  torch::Tensor metadata_and_gradients(int64_t elements) const;
  static constexpr int64_t kMetadataScalars = 6;

 private:
  void adopt();
  void cut_gradients(const std::vector<torch::Tensor>& buffers);
  void arrive(size_t span);
  void on_gradient_ready(size_t span);
  int64_t metadata_numel() const;

  ArenaOptions options_;
  std::vector<ArenaGroup> groups_;
  std::vector<ArenaSpan> spans_;
  std::vector<NamedTensor> frozen_;
  std::vector<compat::GradientHook> hooks_;
  std::vector<bool> is_ready_;
  std::vector<int64_t> versions_;  // of the gradients as they were written
  std::set<size_t> discarded_;
  bool is_open_ = false;    // a window
  bool is_hidden_ = false;  // what is ready is not in `grad()`
  GradientPolicy gradient_policy_ = GradientPolicy::kAccumulate;
  std::function<void(size_t)> on_ready_;
  std::mutex mutex_;
  torch::Tensor metadata_;
  torch::Tensor last_gradients_;  // metadata and gradients of the last group, one allocation
  int64_t metadata_length_ = 0;   // of `metadata_` with its padding
  int64_t numel_ = 0;
};

}  // namespace fleet
