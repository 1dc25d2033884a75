// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/vgg.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/max_pool2d.h>

#include "fleet/applications/application_entry.h"
#include "fleet/applications/data/synthetic_image_batch.h"
#include "fleet/applications/name_group.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/checkpoint.h"

namespace fleet::applications {

VggImpl::VggImpl(const VggOptions& options) : options_(options) {
  auto& features = name_group(*this, "features");
  int64_t in = 3;
  int number = 0;  // torchvision counts activations and pools too
  for (const auto& widths : options.stages) {
    if (widths.empty()) {
      throw UsageError("vgg", format("stage {} has no convolution", stages_.size()),
                       "give each stage the channels of at least one");
    }
    Stage stage;
    for (const int64_t width : widths) {
      Layer layer;
      layer.conv = features.register_module(
          std::to_string(number++),
          ops::Conv2d(
              in, width,
              ops::Conv2dOptions{
                  .bias = true, .channels_last = options.channels_last, .device = options.device}));
      if (options.batch_norm) {
        layer.norm = features.register_module(std::to_string(number++),
                                              ops::BatchNorm2d(width, options.device));
      }
      ++number;
      stage.layers.push_back(layer);
      in = width;
    }
    stage.name = format("features.{}", number++);
    stages_.push_back(std::move(stage));
  }

  auto& classifier = name_group(*this, "classifier");
  const auto add = [&](int place, int64_t from, int64_t to) {
    classifier_.push_back(classifier.register_module(
        std::to_string(place),
        ops::Linear(from, to, ops::LinearOptions{.std = 0.01, .device = options.device})));
  };
  add(0, in * options.pooled * options.pooled, options.hidden);
  add(3, options.hidden, options.hidden);
  add(6, options.hidden, options.classes);
}

torch::Tensor VggImpl::forward(torch::Tensor x) {
  const auto least = int64_t{1} << stages_.size();  // every stage halves it
  if (x.size(2) < least || x.size(3) < least) {
    throw UsageError("vgg",
                     format("images of {} x {} pixels, of which {} stages leave nothing", x.size(2),
                            x.size(3), stages_.size()),
                     format("use at least {0} x {0}", least));
  }
  if (options_.channels_last) x = x.contiguous(torch::MemoryFormat::ChannelsLast);
  for (auto& stage : stages_) {
    for (auto& [conv, norm] : stage.layers) {
      x = conv(x);
      if (norm) x = norm(x);
      x.relu_();
    }
    x = checkpoint(torch::max_pool2d(x, 2, 2), stage.name);
  }
  x = torch::adaptive_avg_pool2d(x, {options_.pooled, options_.pooled}).flatten(1);
  for (size_t i = 0; i + 1 < classifier_.size(); ++i) {
    x = torch::dropout(classifier_[i](x).relu_(), options_.dropout, is_training());
  }
  return classifier_.back()(x);
}

torch::Tensor VggImpl::loss(const Batch& batch) {
  return torch::cross_entropy_loss(forward(batch.data), batch.target, {}, at::Reduction::Mean, -100,
                                   options_.label_smoothing);
}

ImageMetrics VggImpl::metrics(const Batch& batch) {
  return image_metrics(forward(batch.data), batch.target, options_.label_smoothing);
}

std::vector<std::string> VggImpl::checkpoints() const {
  std::vector<std::string> names;
  for (const auto& stage : stages_) names.push_back(stage.name);
  return names;
}

Vgg VGG16(const VggOptions& options) { return Vgg(options); }

const FieldList& fields_of(const VggOptions*) {
  using V = VggOptions;
  static const FieldList list{
      .area = "vgg",
      .fields = {
          field<&V::batch_norm>("batch_norm", "batch norm after each convolution"),
          field<&V::pooled>("pooled", "height and width of the classifier's input").at_least(1),
          field<&V::hidden>("hidden", "width of the classifier").at_least(1),
          field<&V::classes>("classes", "number of classes").at_least(1),
          field<&V::dropout>("dropout", "dropout of the classifier").at_least(0).below(1),
          field<&V::label_smoothing>("label_smoothing", "label smoothing factor")
              .at_least(0)
              .below(1),
      }};
  return list;
}

Batch synthetic_batch(const VggOptions& options, int64_t batch_size, int64_t seed,
                      int64_t image_size) {
  return synthetic_image_batch(
      {.classes = options.classes, .image_size = image_size, .device = options.device}, batch_size,
      seed);
}

namespace {

AnyModel any_vgg(VggOptions options, const ModelRequest& request, int64_t image_size = 224) {
  if (request.outputs > 0) options.classes = request.outputs;
  if (!request.dropout) options.dropout = 0;
  options.device = request.device;
  return any_model(Vgg(options), request, image_size);
}

}  // namespace

ApplicationEntry vgg_application() {
  return {.name = "vgg",
          .samples = SampleKind::kPixels,
          .presets = {{"vgg16", [](const ModelRequest& request) { return any_vgg({}, request); }},
                      {"vgg16-bn",
                       [](const ModelRequest& request) {
                         return any_vgg({.batch_norm = true}, request);
                       }}},
          .trial = {.make =
                        [](const ModelRequest& request) {
                          return any_vgg({.stages = {{8}, {16}, {32, 32}},
                                          .batch_norm = true,
                                          .pooled = 2,
                                          .hidden = 128,
                                          .classes = 8},
                                         request, 32);
                        },
                    .samples = 32,
                    .updates = 45,
                    .lr = 1e-2,
                    .first_loss = 1.8,
                    .last_loss = 0.5,
                    .program = "vgg16",
                    .flags = {"--width=8", "--hidden=128", "--image_size=32"}}};
}

}  // namespace fleet::applications
