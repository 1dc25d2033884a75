// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fleet/fleet.h>
#include <fleet/ops/layers/linear.h>

namespace adding {

/// Sizes of the net.
struct MlpOptions {
  int64_t image_size = 28;  // of a side, in pixels; images have three channels
  int64_t hidden = 64;
  int64_t layers = 2;  // hidden ones
  int64_t classes = 10;
  torch::Device device = torch::kCPU;

  /// With the sizes of a preset in the place of 0, where an application has presets.
  MlpOptions resolved() const { return *this; }
};
const fleet::FieldList& fields_of(const MlpOptions*);

/// Fully connected layers over the pixels of an image.
///
///   auto model = adding::Mlp({.image_size = 16, .classes = 4});
///   auto loss = model.loss(batch);   // batch.data: N x 3 x H x W, batch.target: N
class MlpImpl : public torch::nn::Module {
 public:
  using Options = MlpOptions;

  explicit MlpImpl(const MlpOptions& options = {});
  torch::Tensor forward(torch::Tensor x);
  torch::Tensor loss(const fleet::Batch& batch);
  fleet::applications::ImageMetrics metrics(const fleet::Batch& batch);

  const MlpOptions& options() const { return options_; }
  /// "layers.0", "layers.1", ...: what each hidden layer returns.
  std::vector<std::string> checkpoints() const;

 private:
  MlpOptions options_;
  std::vector<fleet::ops::Linear> layers_;
};
using Mlp = fleet::applications::ImageApplication<MlpImpl>;

/// Images with labels that can be learned, without a download. They have the side that the model
/// has.
fleet::Batch synthetic_batch(const MlpOptions& options, int64_t batch_size, int64_t seed,
                             int64_t image_size);

/// What `fleet convert`, `fleet plan` and the tests of all applications know of it.
fleet::applications::ApplicationEntry mlp_application();

}  // namespace adding
