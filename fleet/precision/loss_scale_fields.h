// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <vector>

#include "fleet/core/options/options.h"

namespace fleet {

/// The fields that `GradScalerOptions` and `amp_configs` share.
template <typename O>
std::vector<Field> loss_scale_fields() {
  return {
      field<&O::init_loss_scaling>("init_loss_scaling", "initial loss scale").above(0),
      field<&O::incr_every_n_steps>("incr_every_n_steps",
                                    "updates without overflow after which the scale grows")
          .at_least(1)
          .in_unit("updates"),
      field<&O::decr_every_n_nan_or_inf>("decr_every_n_nan_or_inf",
                                         "overflows in a row after which the scale shrinks")
          .at_least(1)
          .in_unit("updates"),
      field<&O::incr_ratio>("incr_ratio", "factor by which the scale grows").above(1),
      field<&O::decr_ratio>("decr_ratio", "factor by which the scale shrinks").above(0).below(1),
      field<&O::use_dynamic_loss_scaling>("use_dynamic_loss_scaling",
                                          "dynamic loss scale; off: it stays at init_loss_scaling"),
  };
}

}  // namespace fleet
