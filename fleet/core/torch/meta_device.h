// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/core/torch/interception.h"

namespace fleet::compat {

/// While it lives, tensors that this thread makes are meta tensors, unless another device than the
/// CPU is named: a model that knows nothing of devices takes no memory. Tensors that are made from
/// numbers of the program (`torch::tensor`, `from_blob`) stay on the CPU.
class MetaDeviceScope {
 public:
  MetaDeviceScope() = default;

 private:
  class Factories final : public OpObserver {
   public:
    void call(const c10::OperatorHandle& op, Stack* stack) override;
  };
  Factories factories_;
  ObserverScope observers_{&factories_, nullptr};
  InterceptScope intercept_;
};

}  // namespace fleet::compat
