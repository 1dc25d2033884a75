// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/resnet.h"

#include <cmath>

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/max_pool2d.h>

#include "fleet/applications/application_entry.h"
#include "fleet/applications/data/synthetic_image_batch.h"
#include "fleet/applications/name_group.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/checkpoint.h"

namespace fleet::applications {
namespace {

using ops::BatchNorm2d;
using ops::Conv2d;

Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, const ResnetOptions& options) {
  return Conv2d(in, out,
                ops::Conv2dOptions{.kernel = kernel,
                                   .stride = stride,
                                   .channels_last = options.channels_last,
                                   .device = options.device});
}

// The guide cuts ResNet50 at 'res{}.add.output.5.tmp_0' of 2a, 2b, ...: stages count from 2, the
// blocks of one are letters. In the long stage of ResNet101 and 152 Paddle numbers them: 4a, 4b1,
// 4b2, ...
std::string guide_name_of(size_t stage, int64_t block, int64_t blocks) {
  const bool is_long = blocks > (stage == 2 ? 6 : 26);
  const auto place =
      is_long && block > 0 ? format("b{}", block) : std::string(1, static_cast<char>('a' + block));
  return format("res{}{}.add.output.5.tmp_0", stage + 2, place);
}

void check(const ResnetOptions& options) {
  for (const int64_t count : options.blocks) {
    if (count < 1) {
      throw UsageError("resnet", format("a stage of {} blocks", count),
                       "give each stage at least one");
    }
  }
}

}  // namespace

/// One residual block; `forward` is relu(f(x) + shortcut(x)).
class ResnetBlockImpl : public torch::nn::Module {
 public:
  ResnetBlockImpl(int64_t in, int64_t width, int64_t stride, const ResnetOptions& options) {
    const int64_t out = *options.bottleneck ? 4 * width : width;
    if (*options.bottleneck) {
      add(conv(in, width, 1, 1, options), width, options);
      add(conv(width, width, 3, stride, options), width, options);
      add(conv(width, out, 1, 1, options), out, options);
    } else {
      add(conv(in, width, 3, stride, options), width, options);
      add(conv(width, width, 3, 1, options), width, options);
    }
    if (options.zero_init_last_norm) norms_.back()->weight.data().zero_();
    if (stride != 1 || in != out) {
      auto& downsample = name_group(*this, "downsample");
      shortcut_conv_ = downsample.register_module("0", conv(in, out, 1, stride, options));
      shortcut_norm_ = downsample.register_module("1", BatchNorm2d(out, options.device));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    auto y = x;
    for (size_t i = 0; i < convs_.size(); ++i) {
      y = norms_[i](convs_[i](y));
      if (i + 1 < convs_.size()) y.relu_();
    }
    y += shortcut_conv_ ? shortcut_norm_(shortcut_conv_(x)) : x;
    return y.relu_();
  }

 private:
  void add(Conv2d layer, int64_t channels, const ResnetOptions& options) {
    const auto number = convs_.size() + 1;
    convs_.push_back(register_module(format("conv{}", number), std::move(layer)));
    norms_.push_back(
        register_module(format("bn{}", number), BatchNorm2d(channels, options.device)));
  }

  std::vector<Conv2d> convs_;
  std::vector<BatchNorm2d> norms_;
  Conv2d shortcut_conv_{nullptr};
  BatchNorm2d shortcut_norm_{nullptr};
};

ResnetImpl::ResnetImpl(const ResnetOptions& given) : options_(given.resolved()) {
  const auto& options = options_;
  check(options);
  int64_t in = options.width;
  conv1_ = register_module("conv1", conv(3, in, 7, 2, options));
  bn1_ = register_module("bn1", BatchNorm2d(in, options.device));
  for (size_t stage = 0; stage < options.blocks.size(); ++stage) {
    const auto stage_name = format("layer{}", stage + 1);
    auto& layer = name_group(*this, stage_name);
    const int64_t width = options.width << stage;
    for (int64_t i = 0; i < options.blocks[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      auto block = std::make_shared<ResnetBlockImpl>(in, width, stride, options);
      blocks_.push_back({format("{}.{}", stage_name, i),
                         guide_name_of(stage, i, options.blocks[stage]),
                         layer.register_module(std::to_string(i), std::move(block))});
      in = *options.bottleneck ? 4 * width : width;
    }
  }
  fc_ = register_module("fc", ops::Linear(in, options.classes,
                                          ops::LinearOptions{.std = 0, .device = options.device}));
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  fc_->weight.data().uniform_(-bound, bound);
  fc_->bias.data().uniform_(-bound, bound);
}

torch::Tensor ResnetImpl::forward(torch::Tensor x) {
  if (options_.channels_last) x = x.contiguous(torch::MemoryFormat::ChannelsLast);
  x = torch::max_pool2d(bn1_(conv1_(x)).relu_(), 3, 2, 1);
  for (auto& [name, guide_name, block] : blocks_) {
    x = checkpoint(checkpoint(block->forward(x), name), guide_name);
  }
  return fc_(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

torch::Tensor ResnetImpl::loss(const Batch& batch) {
  return torch::cross_entropy_loss(forward(batch.data), batch.target, {}, at::Reduction::Mean, -100,
                                   options_.label_smoothing);
}

ImageMetrics ResnetImpl::metrics(const Batch& batch) {
  return image_metrics(forward(batch.data), batch.target, options_.label_smoothing);
}

std::vector<std::string> ResnetImpl::checkpoints() const {
  std::vector<std::string> names;
  for (const auto& item : blocks_) names.push_back(item.name);
  return names;
}

ResnetOptions resnet_options(int64_t depth, ResnetOptions options) {
  struct Named {
    int64_t depth;
    std::vector<int64_t> blocks;
  };
  static const std::vector<Named> kNamed = {
      {18, {2, 2, 2, 2}}, {50, {3, 4, 6, 3}}, {101, {3, 4, 23, 3}}, {152, {3, 8, 36, 3}}};
  for (const auto& named : kNamed) {
    if (named.depth != depth) continue;
    if (options.blocks.empty()) options.blocks = named.blocks;
    if (!options.bottleneck) options.bottleneck = depth >= 50;
    return options;
  }
  throw UsageError("resnet", format("there is no ResNet of {} layers", depth),
                   "use 18, 50, 101 or 152");
}

ResnetOptions ResnetOptions::resolved() const { return resnet_options(50, *this); }

Resnet Resnet18(const ResnetOptions& options) { return Resnet(resnet_options(18, options)); }
Resnet Resnet50(const ResnetOptions& options) { return Resnet(resnet_options(50, options)); }
Resnet Resnet101(const ResnetOptions& options) { return Resnet(resnet_options(101, options)); }
Resnet Resnet152(const ResnetOptions& options) { return Resnet(resnet_options(152, options)); }

const FieldList& fields_of(const ResnetOptions*) {
  using R = ResnetOptions;
  static const FieldList list{
      .area = "resnet",
      .fields = {
          field<&R::blocks>("blocks", "number of blocks in each stage").at_least(1),
          field<&R::classes>("classes", "number of classes").at_least(1),
          field<&R::width>("width", "channels of the first stage").at_least(1),
          field<&R::zero_init_last_norm>("zero_init_last_norm",
                                         "zero-initialize the last norm of each block"),
          field<&R::label_smoothing>("label_smoothing", "label smoothing factor")
              .at_least(0)
              .below(1),
      }};
  return list;
}

Batch synthetic_batch(const ResnetOptions& options, int64_t batch_size, int64_t seed,
                      int64_t image_size) {
  return synthetic_image_batch(
      {.classes = options.classes, .image_size = image_size, .device = options.device}, batch_size,
      seed);
}

namespace {

AnyModel any_resnet(ResnetOptions options, const ModelRequest& request, int64_t image_size = 224) {
  if (request.outputs > 0) options.classes = request.outputs;
  options.device = request.device;
  return any_model(Resnet(options), request, image_size);
}

template <int64_t kDepth>
AnyModel any_resnet_of_depth(const ModelRequest& request) {
  return any_resnet(resnet_options(kDepth), request);
}

}  // namespace

ApplicationEntry resnet_application() {
  return {
      .name = "resnet",
      .samples = SampleKind::kPixels,
      .has_dropout = false,
      .presets = {{"resnet18", any_resnet_of_depth<18>},
                  {"resnet50", any_resnet_of_depth<50>},
                  {"resnet101", any_resnet_of_depth<101>},
                  {"resnet152", any_resnet_of_depth<152>}},
      .trial = {.make =
                    [](const ModelRequest& request) {
                      return any_resnet(
                          {.blocks = {1, 1, 1, 1}, .bottleneck = false, .classes = 8, .width = 8},
                          request, 32);
                    },
                .samples = 32,
                .updates = 30,
                .lr = 3e-3,
                .first_loss = 1.8,
                .last_loss = 0.5,
                .program = "resnet50",
                .flags = {"--depth=18", "--width=8", "--image_size=32"}}};
}

}  // namespace fleet::applications
