#include "fleet/applications/resnet.h"

#include <torch/nn/init.h>

namespace fleet::applications {
namespace {

using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  Conv2d layer(Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
  return layer;
}

/// One residual block; `forward` is relu(f(x) + shortcut(x)).
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t in, int64_t width, int64_t stride, const ResnetOptions& options) {
    const int64_t out = options.bottleneck ? 4 * width : width;
    if (options.bottleneck) {
      add(1, conv(in, width, 1, 1));
      add(2, conv(width, width, 3, stride));
      add(3, conv(width, out, 1, 1));
    } else {
      add(1, conv(in, width, 3, stride));
      add(2, conv(width, width, 3, 1));
    }
    if (options.zero_init_last_norm) torch::nn::init::zeros_(norms_.back()->weight);
    if (stride != 1 || in != out) {
      downsample_ = register_module(
          "downsample", torch::nn::Sequential(conv(in, out, 1, stride), BatchNorm2d(out)));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    auto y = x;
    for (size_t i = 0; i < convs_.size(); ++i) {
      y = norms_[i](convs_[i](y));
      if (i + 1 < convs_.size()) y.relu_();
    }
    y += downsample_ ? downsample_->forward(x) : x;
    return y.relu_();
  }

 private:
  void add(int number, Conv2d layer) {
    const auto channels = layer->options.out_channels();
    convs_.push_back(register_module("conv" + std::to_string(number), std::move(layer)));
    norms_.push_back(register_module("bn" + std::to_string(number), BatchNorm2d(channels)));
  }

  std::vector<Conv2d> convs_;
  std::vector<BatchNorm2d> norms_;
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(Block);

}  // namespace

ResnetImpl::ResnetImpl(const ResnetOptions& options) {
  conv1_ = register_module("conv1", conv(3, 64, 7, 2));
  bn1_ = register_module("bn1", BatchNorm2d(64));
  int64_t in = 64;
  for (size_t stage = 0; stage < layers_.size(); ++stage) {
    const int64_t width = int64_t{64} << stage;
    torch::nn::Sequential blocks;
    for (int block = 0; block < options.blocks[stage]; ++block) {
      const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      blocks->push_back(Block(in, width, stride, options));
      in = options.bottleneck ? 4 * width : width;
    }
    layers_[stage] = register_module("layer" + std::to_string(stage + 1), blocks);
  }
  fc_ = register_module("fc", torch::nn::Linear(in, options.classes));
}

torch::Tensor ResnetImpl::forward(torch::Tensor x) {
  x = torch::max_pool2d(bn1_(conv1_(x)).relu_(), 3, 2, 1);
  for (auto& layer : layers_) x = layer->forward(x);
  return fc_(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

}  // namespace fleet::applications
