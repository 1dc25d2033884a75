#pragma once

#include <torch/types.h>

#include "fleet/core/torch_compat.h"

namespace fleet::memory {

/// Keeps a tape's own work out of the tape, and out of autograd.
struct OffTheRecord {
  compat::NoInterceptScope engine;
  compat::ObserverScope nobody{nullptr, nullptr};
  torch::NoGradGuard no_grad;
};

}  // namespace fleet::memory
