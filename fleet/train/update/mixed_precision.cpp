// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/mixed_precision.h"

#include <bit>
#include <cmath>

#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/precision/low_precision_speed.h"

namespace fleet {
namespace {

torch::ScalarType dtype_of(const AmpConfigs& configs) {
  return configs.dtype == "fp16" ? torch::kHalf : torch::kBFloat16;
}

GradScalerOptions scaler_options(const AmpConfigs& configs) {
  GradScalerOptions options{.init_loss_scaling = configs.init_loss_scaling,
                            .incr_every_n_steps = configs.incr_every_n_steps,
                            .decr_every_n_nan_or_inf = configs.decr_every_n_nan_or_inf,
                            .incr_ratio = configs.incr_ratio,
                            .decr_ratio = configs.decr_ratio,
                            .use_dynamic_loss_scaling = configs.use_dynamic_loss_scaling,
                            .max_skips_in_a_row = configs.max_skips_in_a_row};
  if (configs.dtype == "bf16") {
    options.init_loss_scaling = 1;
    options.use_dynamic_loss_scaling = false;
  }
  return options;
}

std::string reason(const MixedPrecision::Skipped& skipped, double scale) {
  if (!std::isfinite(skipped.loss)) {
    return format(
        "the loss is {} in forward already, which no loss scale causes (look for bad "
        "samples, or lower the learning rate)",
        skipped.loss);
  }
  if (scale == 1) return format("the gradient of '{}' is not finite", skipped.gradient);
  return format("the gradient of '{}' is not finite with the loss scale {}", skipped.gradient,
                scale);
}

}  // namespace

MixedPrecision::MixedPrecision(const ModelHandle& model, const AmpConfigs& configs)
    : autocast_({.dtype = dtype_of(configs),
                 .custom_white_list = configs.custom_white_list,
                 .custom_black_list = configs.custom_black_list}),
      scaler_(scaler_options(configs)),
      buffers_(model) {}

void MixedPrecision::warn_if_slow(const AmpConfigs& configs) {
  if (const auto warning = precision::low_precision_warning(dtype_of(configs))) {
    log::warn("amp", *warning);
  }
}

ArenaOptions MixedPrecision::arena_options(const DistributedStrategy& strategy) {
  if (!strategy.amp || !strategy.amp_configs.use_pure_bf16) return {};
  return {.working_dtype = torch::kBFloat16};
}

void MixedPrecision::skip(const ParameterArena& arena, const Skipped& skipped) {
  buffers_.restore();
  const auto parameters = [&] {
    std::vector<NamedTensor> parameters;
    for (const auto& span : arena.spans()) {
      auto value = span.value.detach();
      value.mutable_grad() = span.gradient;  // so that a bad gradient can be named
      parameters.push_back({span.name, value});
    }
    return parameters;
  };
  const auto so_far = static_cast<uint64_t>(scaler_.skipped_total() + 1);
  if (std::has_single_bit(so_far)) {
    const auto line = format("update {} is skipped, and nothing changes: {}; {} skipped so far",
                             skipped.update, reason(skipped, scaler_.scale()), so_far);
    skipped.is_local ? log::warn_here("amp", line) : log::warn("amp", line);
  }
  if (std::isfinite(skipped.loss)) {
    scaler_.update(/*overflow=*/true, parameters);
  } else {
    scaler_.skip(parameters);
  }
}

}  // namespace fleet
