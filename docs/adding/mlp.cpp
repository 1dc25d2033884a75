// SPDX-License-Identifier: Apache-2.0
#include "docs/adding/mlp.h"

namespace adding {

namespace apps = fleet::applications;

const fleet::FieldList& fields_of(const MlpOptions*) {
  using M = MlpOptions;
  static const fleet::FieldList list{
      .area = "mlp",
      .fields = {fleet::field<&M::image_size>("image_size", "sides of an image").at_least(1),
                 fleet::field<&M::hidden>("hidden", "width of a hidden layer").at_least(1),
                 fleet::field<&M::layers>("layers", "number of hidden layers").at_least(1),
                 fleet::field<&M::classes>("classes", "number of classes").at_least(2)}};
  return list;
}

MlpImpl::MlpImpl(const MlpOptions& options) : options_(options) {
  int64_t in = 3 * options.image_size * options.image_size;
  for (int64_t i = 0; i <= options.layers; ++i) {
    const int64_t out = i < options.layers ? options.hidden : options.classes;
    layers_.push_back(register_module(fleet::format("layer{}", i), torch::nn::Linear(in, out)));
    in = out;
  }
}

torch::Tensor MlpImpl::forward(torch::Tensor x) {
  x = x.flatten(1);
  const auto names = checkpoints();
  for (size_t i = 0; i < names.size(); ++i) {
    x = fleet::checkpoint(layers_[i](x).relu(), names[i]);
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

}  // namespace adding
