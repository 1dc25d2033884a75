// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
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

/// What is left open is that of the named model, or else of ResNet50.
struct ResnetOptions {
  std::vector<int64_t> blocks = {};     // of each stage; ResNet50: 3, 4, 6, 3
  std::optional<bool> bottleneck = {};  // 1x1, 3x3, 1x1; otherwise two 3x3, as in ResNet18
  int64_t classes = 1000;
  int64_t width = 64;                // channels of the first stage; each stage doubles them
  bool zero_init_last_norm = false;  // every block starts as the identity
  double label_smoothing = 0;
  bool channels_last = true;  // weights and images: a third faster on the CPU
  torch::Device device = torch::kCPU;

  /// With the blocks of ResNet50, where there are none.
  ResnetOptions resolved() const;
};
const FieldList& fields_of(const ResnetOptions*);

class ResnetBlockImpl;

/// He et al., arXiv 1512.03385, with the stride on the 3x3 as in torchvision, whose parameter
/// names, shapes and initial values it has ("layer1.0.conv1.weight").
///
///   auto model = Resnet50();
///   auto loss = model.loss(batch);            // batch.data: N x 3 x H x W, batch.target: N
///   auto scores = model->forward(images);     // N x classes
class ResnetImpl : public torch::nn::Module {
 public:
  using Options = ResnetOptions;

  explicit ResnetImpl(const ResnetOptions& options = {});
  torch::Tensor forward(torch::Tensor x);
  torch::Tensor loss(const Batch& batch);
  ImageMetrics metrics(const Batch& batch);

  const ResnetOptions& options() const { return options_; }
  /// "layer1.0", "layer1.1", ...: what each block returns. The guide's names mean the same values:
  /// "res2a.add.output.5.tmp_0", "res2b.add.output.5.tmp_0", ...
  std::vector<std::string> checkpoints() const;

 private:
  struct NamedBlock {
    std::string name;
    std::string guide_name;
    std::shared_ptr<ResnetBlockImpl> block;
  };

  ResnetOptions options_;
  ops::Conv2d conv1_{nullptr};
  ops::BatchNorm2d bn1_{nullptr};
  std::vector<NamedBlock> blocks_;
  ops::Linear fc_{nullptr};
};
using Resnet = ImageApplication<ResnetImpl>;

/// `options` with the blocks of ResNet18, 50, 101 or 152, where there are none.
ResnetOptions resnet_options(int64_t depth, ResnetOptions options = {});
Resnet Resnet18(const ResnetOptions& options = {});
Resnet Resnet50(const ResnetOptions& options = {});
Resnet Resnet101(const ResnetOptions& options = {});
Resnet Resnet152(const ResnetOptions& options = {});

/// The paper's spelling.
inline Resnet ResNet50(const ResnetOptions& options = {}) { return Resnet50(options); }

/// Images of coarse patterns under noise (synthetic_image_batch.h).
Batch synthetic_batch(const ResnetOptions& options, int64_t batch_size, int64_t seed,
                      int64_t image_size = 224);

/// For applications.cpp.
ApplicationEntry resnet_application();

}  // namespace fleet::applications
