// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "fleet/core/torch/interception.h"

namespace fleet::memory {

/// Keeps a tape's own work out of the tape, and out of autograd.
struct UnrecordedScope {
  compat::NoInterceptScope no_intercept;
  compat::ObserverScope no_observer{nullptr, nullptr};
  torch::NoGradGuard no_grad;
};

}  // namespace fleet::memory
