// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include <torch/types.h>

#include "fleet/core/model_handle.h"
#include "fleet/core/options/options.h"

namespace torch::optim {
class Optimizer;
}

namespace fleet {

/// The first six are those of `amp_configs`, with Paddle's names and defaults.
struct GradScalerOptions {
  float init_loss_scaling = 32768;
  int incr_every_n_steps = 1000;
  int decr_every_n_nan_or_inf = 2;
  float incr_ratio = 2;
  float decr_ratio = 0.8f;
  bool use_dynamic_loss_scaling = true;

  float min_loss_scaling = 1;         ///< the scale does not shrink below
  float max_loss_scaling = 16777216;  ///< nor grow beyond
  int max_skips_in_a_row = 50;        ///< then it is an error
};
const FieldList& fields_of(const GradScalerOptions*);

/// All that a snapshot has to keep of a GradScaler.
struct GradScalerState {
  float scale = 0;
  int64_t good_in_a_row = 0;  ///< updates since the last overflow or growth
  int64_t bad_in_a_row = 0;   ///< overflows since the last good update or shrinking
  int64_t skipped_in_a_row = 0;
  int64_t skipped_total = 0;

  bool operator==(const GradScalerState&) const = default;
};
const FieldList& fields_of(const GradScalerState*);

/// Multiplies the loss, so that gradients that are too small for fp16 are not lost, and skips the
/// update when some are too large. The scale follows Paddle's rule: times `incr_ratio` after
/// `incr_every_n_steps` good updates in a row, times `decr_ratio` after `decr_every_n_nan_or_inf`
/// bad ones in a row.
///
/// Between two calls of `update` lies a window; inside it the scale does not move, so that several
/// backwards add up. Clip between `unscale` and `step`. A skipped step touches neither parameters
/// nor optimizer, but the gradients are still to be cleared.
///
///   GradScaler scaler;
///   optimizer.zero_grad();
///   scaler.scale(loss).backward();
///   scaler.unscale(net);     // may be left out: then `step` does it
///   scaler.step(optimizer);  // any of torch::optim; not done when a gradient is not finite
///   scaler.update();
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  /// `loss` times the scale, in fp32 at least: in fp16 the product would be infinite.
  torch::Tensor scale(const torch::Tensor& loss) const;

  /// Divides the gradients by the scale; true when all are finite. Once per window, for all
  /// parameters that will be stepped. Throws when a parameter itself is not finite, since then no
  /// later update can be good. Errors call parameters without names by their place: '#0'.
  bool unscale(const std::vector<NamedTensor>& parameters);
  bool unscale(const ModelHandle& model) { return unscale(model.parameters()); }
  bool unscale(const std::vector<torch::Tensor>& parameters);

  /// Steps if all gradients of the window are finite; false when it was skipped. Unscales the
  /// optimizer's parameters if `unscale` was not called. Several optimizers in one window need
  /// `unscale` with the parameters of all, so that they step or skip together. Not for optimizers
  /// that need a closure (LBFGS).
  bool step(torch::optim::Optimizer& optimizer);

  /// Ends the window.
  void update();

  /// The same for callers that scale, unscale and check themselves. On overflow `parameters` is
  /// asked, if given: it throws at once when a weight is not finite, and names the gradient after
  /// too many skips.
  using Parameters = std::function<std::vector<NamedTensor>()>;
  void update(bool overflow, const Parameters& parameters = {});

  /// The loss itself was not finite, which no loss scale causes: counts as a skipped update, and
  /// leaves the scale as it is.
  void skip(const Parameters& parameters = {});

  double scale() const { return state_.scale; }
  double inverse_scale() const { return 1.0 / scale(); }
  int64_t good_in_a_row() const { return state_.good_in_a_row; }
  int64_t skipped_in_a_row() const { return state_.skipped_in_a_row; }
  int64_t skipped_total() const { return state_.skipped_total; }

  /// Between windows. A fixed scale (`use_dynamic_loss_scaling` false) stays the option's.
  GradScalerState state() const { return state_; }
  void set_state(const GradScalerState& state);

 private:
  // What happened since the last update.
  struct Window {
    std::unordered_set<const void*> unscaled;  // tensors whose gradients are
    std::unordered_set<const void*> stepped;   // optimizers
    bool by_step = false;                      // it was `step` that unscaled
    bool overflow = false;
    std::string bad_gradient;  // the first gradient that is not finite
  };

  std::string first_bad_gradient(const std::vector<NamedTensor>& parameters) const;
  void end_window(bool overflow, const std::string& bad_gradient);
  void count_skip(const std::string& bad_gradient);
  void grow();
  void shrink();

  GradScalerOptions options_;
  GradScalerState state_;
  Window window_;
};

}  // namespace fleet
