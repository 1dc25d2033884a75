// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/layers/channels_last.h"

#include <torch/nn/module.h>

namespace fleet::ops {

void to_channels_last(torch::nn::Module& model) {
  for (auto& parameter : model.parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(parameter.detach().contiguous(torch::MemoryFormat::ChannelsLast));
  }
}

}  // namespace fleet::ops
