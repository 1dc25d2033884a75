// SPDX-License-Identifier: Apache-2.0
#include "fleet/precision/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <torch/optim/optimizer.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/precision/finite.h"

namespace fleet {
namespace {

constexpr std::string_view kArea = "grad_scaler";

using Tensors = std::vector<torch::Tensor>;

const void* identity(const torch::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }

void check(const GradScalerOptions& options) {
  auto problems = out_of_limits(options);
  if (problems.empty() && options.use_dynamic_loss_scaling) {
    if (options.init_loss_scaling < options.min_loss_scaling) {
      problems.push_back(format("init_loss_scaling {} is below min_loss_scaling {}",
                                options.init_loss_scaling, options.min_loss_scaling));
    }
    if (options.init_loss_scaling > options.max_loss_scaling) {
      problems.push_back(format("init_loss_scaling {} is above max_loss_scaling {}",
                                options.init_loss_scaling, options.max_loss_scaling));
    }
  }
  if (!problems.empty()) throw UsageError::all(kArea, "these options do not work:", problems);
}

// The dense part of a gradient; a sparse one may hold an element twice, whose sum may overflow.
torch::Tensor values_of(const torch::Tensor& parameter) {
  auto gradient = parameter.grad();
  if (!gradient.is_sparse()) return gradient.detach();
  if (!gradient.is_coalesced()) {
    gradient = gradient.coalesce();
    parameter.mutable_grad() = gradient;
  }
  return gradient._values();
}

// LibTorch's op takes one device and one type at a time.
std::map<std::pair<std::string, torch::ScalarType>, Tensors> by_kind(const Tensors& gradients) {
  std::map<std::pair<std::string, torch::ScalarType>, Tensors> kinds;
  for (const auto& gradient : gradients) {
    kinds[{gradient.device().str(), gradient.scalar_type()}].push_back(gradient);
  }
  return kinds;
}

// One pass over each gradient; true when all are finite.
bool multiply_and_check(const Tensors& gradients, double factor) {
  const torch::NoGradGuard no_grad;
  bool finite = true;
  for (const auto& [kind, tensors] : by_kind(gradients)) {
    const auto options = tensors.front().options().dtype(torch::kFloat);
    auto found = torch::zeros({1}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, found,
                                                   torch::full({1}, factor, options));
    finite &= found.item<float>() == 0;
  }
  return finite;
}

std::vector<NamedTensor> numbered(const Tensors& tensors) {
  std::vector<NamedTensor> named;
  for (const auto& tensor : tensors) named.push_back({format("#{}", named.size()), tensor});
  return named;
}

Tensors parameters_of(torch::optim::Optimizer& optimizer) {
  Tensors parameters;
  for (auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

}  // namespace

const FieldList& fields_of(const GradScalerState*) {
  using S = GradScalerState;
  static const FieldList list{
      .area = "amp",
      .fields = {
          field<&S::scale>("scale", "what the loss is multiplied by; 0: without amp").at_least(0),
          field<&S::good_in_a_row>("good_in_a_row", "updates since the last overflow or growth")
              .at_least(0),
          field<&S::bad_in_a_row>("bad_in_a_row", "overflows since the last good update")
              .at_least(0),
          field<&S::skipped_in_a_row>("skipped_in_a_row", "updates").at_least(0),
          field<&S::skipped_total>("skipped_total", "updates").at_least(0),
      }};
  return list;
}

const FieldList& fields_of(const GradScalerOptions*) {
  using O = GradScalerOptions;
  constexpr double kMost = std::numeric_limits<float>::max();
  static const FieldList list{
      .area = kArea,
      .fields = {
          field<&O::init_loss_scaling>("init_loss_scaling", "initial loss scale")
              .above(0)
              .at_most(kMost),
          field<&O::incr_every_n_steps>("incr_every_n_steps",
                                        "the scale grows after so many updates without overflow")
              .at_least(1)
              .in_unit("updates"),
          field<&O::decr_every_n_nan_or_inf>("decr_every_n_nan_or_inf",
                                             "the scale shrinks after so many overflows in a row")
              .at_least(1)
              .in_unit("updates"),
          field<&O::incr_ratio>("incr_ratio", "factor by which the scale grows").above(1),
          field<&O::decr_ratio>("decr_ratio", "factor by which the scale shrinks")
              .above(0)
              .below(1),
          field<&O::use_dynamic_loss_scaling>(
              "use_dynamic_loss_scaling", "dynamic loss scale; off: it stays at init_loss_scaling"),
          field<&O::min_loss_scaling>("min_loss_scaling", "the scale does not shrink below")
              .above(0),
          field<&O::max_loss_scaling>("max_loss_scaling", "the scale does not grow beyond")
              .above(0)
              .at_most(kMost),
          field<&O::max_skips_in_a_row>("max_skips_in_a_row",
                                        "so many skipped updates in a row are an error")
              .at_least(1)
              .in_unit("updates"),
      }};
  return list;
}

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  check(options);
  state_.scale = options.init_loss_scaling;
}

torch::Tensor GradScaler::scale(const torch::Tensor& loss) const {
  if (!window_.unscaled.empty()) {
    throw Error(kArea,
                "a loss is scaled after the gradients were unscaled, so scaled and unscaled "
                "gradients would be added",
                "end every window with update() before the next forward");
  }
  const bool low = loss.scalar_type() == torch::kHalf || loss.scalar_type() == torch::kBFloat16;
  return (low ? loss.to(torch::kFloat) : loss) * scale();
}

bool GradScaler::unscale(const std::vector<NamedTensor>& parameters) {
  if (!window_.unscaled.empty()) {
    throw Error(kArea,
                "unscale() is called twice in one window, so gradients would be divided twice by "
                "the loss scale",
                "call it once, with all parameters, and end the window with update()");
  }
  Tensors gradients;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.defined() || !tensor.grad().defined()) continue;
    if (!window_.unscaled.insert(identity(tensor)).second) continue;  // a shared one, seen before
    gradients.push_back(values_of(tensor));
  }
  if (gradients.empty()) {
    throw Error(kArea, format("none of {} parameters has a gradient", parameters.size()),
                "call scale(loss).backward() before, and give the parameters that the loss uses");
  }
  window_.overflow = !multiply_and_check(gradients, inverse_scale());
  if (window_.overflow) window_.bad_gradient = first_bad_gradient(parameters);
  return !window_.overflow;
}

bool GradScaler::unscale(const std::vector<torch::Tensor>& parameters) {
  return unscale(numbered(parameters));
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  const auto parameters = parameters_of(optimizer);
  if (window_.unscaled.empty()) {
    unscale(parameters);
    window_.by_step = true;
  }
  const bool covered = std::ranges::all_of(parameters, [&](const torch::Tensor& parameter) {
    return !parameter.grad().defined() || window_.unscaled.contains(identity(parameter));
  });
  if (!covered) {
    throw Error(kArea,
                window_.by_step
                    ? "a second optimizer steps in this window after the first was stepped alone, "
                      "so one could step and the other skip"
                    : "the optimizer has parameters whose gradients unscale() was not given, so "
                      "they are still multiplied by the loss scale",
                "call unscale() once with the parameters of all optimizers before the first step");
  }
  if (!window_.stepped.insert(&optimizer).second) {
    throw Error(kArea, "step() is called twice for one optimizer without update() in between",
                "call update() after the steps of each window");
  }
  if (!window_.overflow) optimizer.step();
  return !window_.overflow;
}

void GradScaler::update() {
  if (window_.unscaled.empty()) {
    throw Error(kArea, "update() is called, but no gradient was unscaled since the last one",
                "call unscale() or step() before update()");
  }
  const auto window = std::exchange(window_, {});
  end_window(window.overflow, window.bad_gradient);
}

void GradScaler::update(bool overflow, const Parameters& parameters) {
  window_ = {};
  std::string bad_gradient;
  if (overflow && parameters) bad_gradient = first_bad_gradient(parameters());
  end_window(overflow, bad_gradient);
}

// The name of the first gradient that is not finite; empty if there is none here.
std::string GradScaler::first_bad_gradient(const std::vector<NamedTensor>& parameters) const {
  if (const auto broken = precision::first_non_finite(parameters)) {
    throw Error(kArea,
                format("parameter '{}' holds NaN or infinity, so every further update would be "
                       "skipped; this is no overflow of the loss scale ({})",
                       *broken, state_.scale),
                "go back to a snapshot from before, with a lower learning rate, a warm-up or "
                "clipped gradients");
  }
  std::vector<NamedTensor> gradients;
  for (const auto& [name, tensor] : parameters) gradients.push_back({name, tensor.grad()});
  return precision::first_non_finite(gradients).value_or("");
}

void GradScaler::end_window(bool overflow, const std::string& bad_gradient) {
  if (!overflow) {
    state_.skipped_in_a_row = 0;
    state_.bad_in_a_row = 0;
    if (++state_.good_in_a_row >= options_.incr_every_n_steps) grow();
    return;
  }
  state_.good_in_a_row = 0;
  if (++state_.bad_in_a_row >= options_.decr_every_n_nan_or_inf) shrink();
  count_skip(bad_gradient);
}

void GradScaler::skip(const Parameters& parameters) {
  window_ = {};
  state_.good_in_a_row = 0;
  count_skip(parameters ? first_bad_gradient(parameters()) : "");
}

void GradScaler::count_skip(const std::string& bad_gradient) {
  ++state_.skipped_total;
  ++state_.skipped_in_a_row;
  if (state_.skipped_in_a_row < options_.max_skips_in_a_row) return;
  const auto first = bad_gradient.empty()
                         ? ""
                         : format("; the first is the gradient of parameter '{}'", bad_gradient);
  throw Error(kArea,
              format("{} updates in a row were skipped, because gradients held NaN or infinity{}. "
                     "The loss scale is {} now",
                     state_.skipped_in_a_row, first, state_.scale),
              "look for NaN in the samples and in the loss (log of 0, division by 0), lower the "
              "learning rate, and clear the gradients after a skipped step too");
}

// In float, and a result that is not finite is dropped: Paddle's rule to the bit, but for the cap.
void GradScaler::grow() {
  state_.good_in_a_row = 0;
  if (!options_.use_dynamic_loss_scaling) return;
  const float grown = state_.scale * options_.incr_ratio;
  if (std::isfinite(grown)) state_.scale = std::min(grown, options_.max_loss_scaling);
}

void GradScaler::shrink() {
  state_.bad_in_a_row = 0;
  if (!options_.use_dynamic_loss_scaling) return;
  state_.scale = std::max(state_.scale * options_.decr_ratio, options_.min_loss_scaling);
}

void GradScaler::set_state(const GradScalerState& state) {
  const auto fewest = std::min(
      {state.good_in_a_row, state.bad_in_a_row, state.skipped_in_a_row, state.skipped_total});
  if (!std::isfinite(state.scale) || state.scale <= 0 || fewest < 0) {
    throw Error(kArea,
                format("the saved state is damaged: loss scale {}, counts {}, {}, {}, {}",
                       state.scale, state.good_in_a_row, state.bad_in_a_row, state.skipped_in_a_row,
                       state.skipped_total),
                "take another snapshot");
  }
  window_ = {};
  state_ = state;
  if (!options_.use_dynamic_loss_scaling) state_.scale = options_.init_loss_scaling;
}

}  // namespace fleet
