// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/torch/meta_device.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace fleet::compat {

void MetaDeviceScope::Factories::call(const c10::OperatorHandle& op, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "device") continue;
    auto& device = (*stack)[first + i];
    if (device.isNone() || (device.isDevice() && device.toDevice().is_cpu())) {
      device = c10::Device(c10::kMeta);
    }
  }
  op.callBoxed(stack);
}

}  // namespace fleet::compat
