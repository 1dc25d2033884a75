// SPDX-License-Identifier: Apache-2.0
// Nets of convolutions.

#include <torch/torch.h>

#include "bench/zoo/zoo.h"

namespace fleet::zoo {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Sequential;

constexpr int64_t kClasses = 10;

Tensor images_of(const Net& net, int64_t side, int64_t update) {
  return noise(net, {net.samples(), 3, side, side}, update);
}

Tensor class_loss(const Tensor& logits) {
  const auto labels = torch::arange(logits.size(0), logits.options().dtype(torch::kLong));
  return F::cross_entropy(logits, labels % kClasses);
}

// A net of images with a batch of its own.
struct ImageNet : Net {
  ImageNet(const NetOptions& o, int64_t own_samples, int64_t image_side)
      : Net(o, own_samples), side(image_side) {}
  virtual Tensor forward(Tensor x) = 0;
  Tensor loss(int64_t update) override {
    return class_loss(forward(images_of(*this, side, update)));
  }
  int64_t side;
};

// ---- ConvNeXt

struct ConvNextBlock : torch::nn::Module {
  explicit ConvNextBlock(int64_t width) {
    depthwise = register_module("depthwise",
                                Conv2d(Conv2dOptions(width, width, 7).padding(3).groups(width)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
    scale = register_parameter("scale", torch::full({width}, 1e-2));
  }
  Tensor forward(const Tensor& x) {
    auto y = norm(depthwise(x).permute({0, 2, 3, 1}));
    y = scale * down(torch::gelu(up(y)));
    return x + y.permute({0, 3, 1, 2});
  }
  Conv2d depthwise{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
  Tensor scale;
};

struct ConvNext final : ImageNet {
  explicit ConvNext(const NetOptions& o) : ImageNet(o, 8, 96) {
    const std::vector<int64_t> depths = {3, 3, 9, 3}, widths = {32, 64, 128, 256};
    for (size_t i = 0; i < depths.size(); ++i) {
      const int64_t from = i == 0 ? 3 : widths[i - 1], step = i == 0 ? 4 : 2;
      body->push_back(Conv2d(Conv2dOptions(from, widths[i], step).stride(step)));
      for (int64_t k = 0; k < depths[i]; ++k) body->push_back(ConvNextBlock(widths[i]));
    }
    register_module("body", body);
    classes = register_module("classes", torch::nn::Linear(widths.back(), kClasses));
  }
  Tensor forward(Tensor x) override { return classes(body->forward(x).mean({2, 3})); }
  Sequential body;
  torch::nn::Linear classes{nullptr};
};

// ---- U-Net

Sequential two_convolutions(int64_t from, int64_t to) {
  const auto relu = torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true));
  return Sequential(Conv2d(Conv2dOptions(from, to, 3).padding(1).bias(false)), BatchNorm2d(to),
                    relu, Conv2d(Conv2dOptions(to, to, 3).padding(1).bias(false)), BatchNorm2d(to),
                    relu);
}

struct UNet final : Net {
  static constexpr int64_t kLevels = 4, kWidth = 16, kSide = 96;
  explicit UNet(const NetOptions& o) : Net(o, 8) {
    int64_t from = 3;
    for (int64_t i = 0; i < kLevels; ++i) {
      const int64_t to = kWidth << i;
      down.push_back(register_module("down" + std::to_string(i), two_convolutions(from, to)));
      from = to;
    }
    middle = register_module("middle", two_convolutions(from, 2 * from));
    for (int64_t i = kLevels - 1; i >= 0; --i) {
      const int64_t to = kWidth << i;
      grow.push_back(register_module(
          "grow" + std::to_string(i),
          torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(2 * to, to, 2).stride(2))));
      up.push_back(register_module("up" + std::to_string(i), two_convolutions(2 * to, to)));
    }
    last = register_module("last", Conv2d(Conv2dOptions(kWidth, 1, 1)));
  }
  Tensor loss(int64_t update) override {
    const auto images = images_of(*this, kSide, update);
    auto x = images;
    std::vector<Tensor> skips;
    for (auto& level : down) {
      skips.push_back(level->forward(x));
      x = torch::max_pool2d(skips.back(), 2);
    }
    x = middle->forward(x);
    for (size_t i = 0; i < up.size(); ++i) {
      x = torch::cat({skips[skips.size() - 1 - i], grow[i](x)}, 1);
      x = up[i]->forward(x);
    }
    const auto target = images.mean(1, true).gt(0).to(images.dtype());
    return F::binary_cross_entropy_with_logits(last(x), target);
  }
  std::vector<Sequential> down, up;
  Sequential middle{nullptr};
  std::vector<torch::nn::ConvTranspose2d> grow;
  Conv2d last{nullptr};
};

// ---- DenseNet

struct DenseLayer : torch::nn::Module {
  DenseLayer(int64_t from, int64_t growth) {
    norm1 = register_module("norm1", BatchNorm2d(from));
    conv1 = register_module("conv1", Conv2d(Conv2dOptions(from, 4 * growth, 1).bias(false)));
    norm2 = register_module("norm2", BatchNorm2d(4 * growth));
    conv2 = register_module("conv2",
                            Conv2d(Conv2dOptions(4 * growth, growth, 3).padding(1).bias(false)));
  }
  Tensor forward(const std::vector<Tensor>& before) {
    const auto x = conv1(norm1(torch::cat(before, 1)).relu_());
    return conv2(norm2(x).relu_());
  }
  BatchNorm2d norm1{nullptr}, norm2{nullptr};
  Conv2d conv1{nullptr}, conv2{nullptr};
};

struct DenseNet final : ImageNet {
  static constexpr int64_t kGrowth = 8;
  explicit DenseNet(const NetOptions& o) : ImageNet(o, 16, 64) {
    stem = register_module(
        "stem",
        Sequential(Conv2d(Conv2dOptions(3, 2 * kGrowth, 7).stride(2).padding(3).bias(false)),
                   BatchNorm2d(2 * kGrowth), torch::nn::ReLU(),
                   torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1))));
    int64_t width = 2 * kGrowth;
    const std::vector<int64_t> depths = {6, 12, 24, 16};
    for (size_t i = 0; i < depths.size(); ++i) {
      auto& block = blocks.emplace_back();
      for (int64_t k = 0; k < depths[i]; ++k) {
        block.push_back(register_module("layer" + std::to_string(i) + "_" + std::to_string(k),
                                        std::make_shared<DenseLayer>(width, kGrowth)));
        width += kGrowth;
      }
      if (i + 1 == depths.size()) break;
      between.push_back(
          register_module("between" + std::to_string(i),
                          Sequential(BatchNorm2d(width), torch::nn::ReLU(),
                                     Conv2d(Conv2dOptions(width, width / 2, 1).bias(false)),
                                     torch::nn::AvgPool2d(2))));
      width /= 2;
    }
    norm = register_module("norm", BatchNorm2d(width));
    classes = register_module("classes", torch::nn::Linear(width, kClasses));
  }
  Tensor forward(Tensor x) override {
    x = stem->forward(x);
    for (size_t i = 0; i < blocks.size(); ++i) {
      std::vector<Tensor> features{x};
      for (const auto& layer : blocks[i]) features.push_back(layer->forward(features));
      x = torch::cat(features, 1);
      if (i < between.size()) x = between[i]->forward(x);
    }
    return classes(torch::relu(norm(x)).mean({2, 3}));
  }
  Sequential stem{nullptr};
  std::vector<std::vector<std::shared_ptr<DenseLayer>>> blocks;
  std::vector<Sequential> between;
  BatchNorm2d norm{nullptr};
  torch::nn::Linear classes{nullptr};
};

// ---- SqueezeNet

struct Fire : torch::nn::Module {
  Fire(int64_t from, int64_t squeezed, int64_t expanded) {
    squeeze = register_module("squeeze", Conv2d(Conv2dOptions(from, squeezed, 1)));
    one = register_module("one", Conv2d(Conv2dOptions(squeezed, expanded, 1)));
    three = register_module("three", Conv2d(Conv2dOptions(squeezed, expanded, 3).padding(1)));
  }
  Tensor forward(const Tensor& x) {
    const auto narrow = squeeze(x).relu_();
    return torch::cat({one(narrow).relu_(), three(narrow).relu_()}, 1);
  }
  Conv2d squeeze{nullptr}, one{nullptr}, three{nullptr};
};

struct SqueezeNet final : ImageNet {
  explicit SqueezeNet(const NetOptions& o) : ImageNet(o, 16, 96) {
    const auto pool =
        torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).ceil_mode(true));
    body->push_back(Conv2d(Conv2dOptions(3, 32, 3).stride(2)));
    body->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
    body->push_back(pool);
    body->push_back(Fire(32, 8, 32));
    body->push_back(Fire(64, 8, 32));
    body->push_back(pool);
    body->push_back(Fire(64, 16, 64));
    body->push_back(Fire(128, 16, 64));
    body->push_back(pool);
    body->push_back(Fire(128, 24, 96));
    body->push_back(Fire(192, 24, 96));
    body->push_back(Fire(192, 32, 128));
    body->push_back(Fire(256, 32, 128));
    body->push_back(torch::nn::Dropout(0.5));
    body->push_back(Conv2d(Conv2dOptions(256, kClasses, 1)));
    register_module("body", body);
  }
  Tensor forward(Tensor x) override { return body->forward(x).mean({2, 3}); }
  Sequential body;
};

// ---- VGG11 with batch norm

struct VggBn final : ImageNet {
  explicit VggBn(const NetOptions& o) : ImageNet(o, 16, 64) {
    int64_t from = 3;
    for (const int64_t to : {16, 0, 32, 0, 64, 64, 0, 128, 128, 0, 128, 128, 0}) {
      if (to == 0) {
        body->push_back(torch::nn::MaxPool2d(2));
        continue;
      }
      body->push_back(Conv2d(Conv2dOptions(from, to, 3).padding(1)));
      body->push_back(BatchNorm2d(to));
      body->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
      from = to;
    }
    register_module("body", body);
    head = register_module("head",
                           Sequential(torch::nn::Linear(128 * 4, 256), torch::nn::ReLU(),
                                      torch::nn::Dropout(0.5), torch::nn::Linear(256, kClasses)));
  }
  Tensor forward(Tensor x) override { return head->forward(body->forward(x).flatten(1)); }
  Sequential body, head{nullptr};
};

}  // namespace

std::shared_ptr<Net> convnext(const NetOptions& options) {
  return std::make_shared<ConvNext>(options);
}
std::shared_ptr<Net> unet(const NetOptions& options) { return std::make_shared<UNet>(options); }
std::shared_ptr<Net> densenet(const NetOptions& options) {
  return std::make_shared<DenseNet>(options);
}
std::shared_ptr<Net> squeezenet(const NetOptions& options) {
  return std::make_shared<SqueezeNet>(options);
}
std::shared_ptr<Net> vgg_bn(const NetOptions& options) { return std::make_shared<VggBn>(options); }

}  // namespace fleet::zoo
