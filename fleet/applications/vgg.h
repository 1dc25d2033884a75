// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fleet/applications/image_application.h"
#include "fleet/applications/image_metrics.h"
#include "fleet/data/batch.h"
#include "fleet/ops/layers/batch_norm2d.h"
#include "fleet/ops/layers/conv2d.h"
#include "fleet/ops/layers/linear.h"

namespace fleet::applications {

struct ApplicationEntry;

/// Shape of a VGG; the defaults are VGG16's.
struct VggOptions {
  /// Channels of the 3x3 convolutions of each stage; a stage ends with a 2x2 pool.
  std::vector<std::vector<int64_t>> stages = {
      {64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}};
  bool batch_norm = false;
  int64_t pooled = 7;  // height and width that the classifier sees, whatever the image's size
  int64_t hidden = 4096;
  int64_t classes = 1000;
  double dropout = 0.5;  // behind both hidden layers
  double label_smoothing = 0;
  bool channels_last = true;
  torch::Device device = torch::kCPU;

  VggOptions resolved() const { return *this; }
};
const FieldList& fields_of(const VggOptions*);

/// Simonyan and Zisserman, arXiv 1409.1556, with torchvision's parameter names, shapes and initial
/// values ("features.0.weight", "classifier.6.bias").
///
///   auto model = VGG16({.batch_norm = true});
///   auto loss = model.loss(batch);   // batch.data: N x 3 x H x W, batch.target: N
class VggImpl : public torch::nn::Module {
 public:
  using Options = VggOptions;

  explicit VggImpl(const VggOptions& options = {});
  torch::Tensor forward(torch::Tensor x);
  torch::Tensor loss(const Batch& batch);
  ImageMetrics metrics(const Batch& batch);

  const VggOptions& options() const { return options_; }
  /// "features.4", "features.9", ...: what each stage's pool returns.
  std::vector<std::string> checkpoints() const;

 private:
  struct Layer {
    ops::Conv2d conv{nullptr};
    ops::BatchNorm2d norm{nullptr};
  };
  struct Stage {
    std::vector<Layer> layers;
    std::string name;  // of its pool
  };

  VggOptions options_;
  std::vector<Stage> stages_;
  std::vector<ops::Linear> classifier_;
};
using Vgg = ImageApplication<VggImpl>;

Vgg VGG16(const VggOptions& options = {});

/// Images of coarse patterns under noise (synthetic_image_batch.h).
Batch synthetic_batch(const VggOptions& options, int64_t batch_size, int64_t seed,
                      int64_t image_size = 224);

/// For applications.cpp.
ApplicationEntry vgg_application();

}  // namespace fleet::applications
