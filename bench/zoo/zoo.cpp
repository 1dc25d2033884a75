// SPDX-License-Identifier: Apache-2.0
#include "bench/zoo/zoo.h"

#include <algorithm>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"
#include "fleet/core/torch/meta_device.h"

namespace fleet::zoo {

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {"gpt", "12 blocks, sdpa with dropout, keys and values held, tied embeddings", false, &gpt},
      {"encoder-decoder", "T5's shape: 6 + 6 blocks, relative positions", false, &encoder_decoder},
      {"vit", "12 blocks on patches of an image", false, &vision_transformer},
      {"convnext", "3, 3, 9 and 3 blocks of depthwise convolutions", false, &convnext},
      {"unet", "4 levels with skip connections and batch norm", false, &unet},
      {"densenet121", "6, 12, 24 and 16 layers that all read each other", false, &densenet},
      {"squeezenet", "8 fire modules", false, &squeezenet},
      {"vgg11-bn", "8 convolutions with batch norm", false, &vgg_bn},
      {"lstm", "3 layers, 100 steps, bidirectional", false, &lstm},
      {"moe", "6 blocks of 4 experts, 2 of them for each token, routed by data", true,
       &mixture_of_experts},
      {"changing", "random depth and width in every update", true, &changing},
  };
  return all;
}

std::shared_ptr<Net> make_net(std::string_view name, const NetOptions& options) {
  const auto entry = std::ranges::find(entries(), name, &Entry::name);
  if (entry == entries().end()) {
    std::vector<std::string> names;
    for (const auto& known : entries()) names.emplace_back(known.name);
    throw UsageError("zoo", format("no net is called '{}'{}", name, did_you_mean(name, names)), "");
  }
  std::optional<compat::MetaDeviceScope> on_meta;
  if (options.device.is_meta()) on_meta.emplace();
  auto net = entry->make(options);
  if (options.dtype != torch::kFloat) net->to(options.dtype);
  net->train();
  return net;
}

torch::Tensor noise(const Net& net, at::IntArrayRef sizes, int64_t update) {
  if (net.device().is_meta()) {
    return torch::empty(sizes, torch::TensorOptions(net.dtype()).device(torch::kMeta));
  }
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + update));
  return torch::randn(sizes, generator).to(net.dtype());
}

}  // namespace fleet::zoo
