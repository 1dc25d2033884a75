// SPDX-License-Identifier: Apache-2.0
#include "docs/adding/mlp.h"

#include <cmath>

namespace adding {

namespace apps = fleet::applications;

const fleet::FieldList& fields_of(const MlpOptions*) {
  using M = MlpOptions;
  static const fleet::FieldList list{
      .area = "mlp",
      .fields = {fleet::field<&M::image_size>("image_size", "side of an image").at_least(1),
                 fleet::field<&M::hidden>("hidden", "width of a hidden layer").at_least(1),
                 fleet::field<&M::layers>("layers", "number of hidden layers").at_least(1),
                 fleet::field<&M::classes>("classes", "number of classes").at_least(2)}};
  return list;
}

MlpImpl::MlpImpl(const MlpOptions& options) : options_(options) {
  int64_t in = 3 * options.image_size * options.image_size;
  for (int64_t i = 0; i <= options.layers; ++i) {
    const int64_t out = i < options.layers ? options.hidden : options.classes;
    // Made on its device, which may be meta: shapes without memory, for plans.
    const fleet::ops::LinearOptions layer{.std = std::sqrt(2.0 / static_cast<double>(in)),
                                          .device = options.device};
    layers_.push_back(
        register_module(fleet::format("layer{}", i), fleet::ops::Linear(in, out, layer)));
    in = out;
  }
}

torch::Tensor MlpImpl::forward(torch::Tensor x) {
  x = x.flatten(1);
  const auto names = checkpoints();
  for (size_t i = 0; i < names.size(); ++i) {
    x = fleet::checkpoint(layers_[i](x).clamp_min(0), names[i]);
  }
  return layers_.back()(x);
}

torch::Tensor MlpImpl::loss(const fleet::Batch& batch) {
  return torch::cross_entropy_loss(forward(batch.data), batch.target);
}

apps::ImageMetrics MlpImpl::metrics(const fleet::Batch& batch) {
  return apps::image_metrics(forward(batch.data), batch.target, /*label_smoothing=*/0);
}

std::vector<std::string> MlpImpl::checkpoints() const {
  std::vector<std::string> names;
  for (int64_t i = 0; i < options_.layers; ++i) names.push_back(fleet::format("layers.{}", i));
  return names;
}

fleet::Batch synthetic_batch(const MlpOptions& options, int64_t batch_size, int64_t seed,
                             int64_t image_size) {
  return apps::synthetic_image_batch(
      {.classes = options.classes, .image_size = image_size, .device = options.device}, batch_size,
      seed);
}

namespace {

apps::AnyModel any_mlp(MlpOptions options, const apps::ModelRequest& request) {
  if (request.outputs > 0) options.classes = request.outputs;
  if (request.length > 0) options.image_size = request.length;
  options.device = request.device;
  return apps::any_model(Mlp(options), request, options.image_size);
}

}  // namespace

apps::ApplicationEntry mlp_application() {
  return {.name = "mlp",
          .samples = apps::SampleKind::kPixels,
          .has_dropout = false,
          .presets = {{"mlp-small",
                       [](const apps::ModelRequest& request) { return any_mlp({}, request); }}},
          .trial = {.make =
                        [](const apps::ModelRequest& request) {
                          return any_mlp({.image_size = 16, .classes = 4}, request);
                        },
                    .samples = 32,
                    .updates = 30,
                    .lr = 3e-3,
                    .first_loss = 1.2,
                    .last_loss = 0.3,
                    .program = "mlp_program",
                    .flags = {"--image_size=16", "--classes=4"}}};
}

}  // namespace adding
