#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "fleet/applications/application.h"
#include "fleet/applications/image_metrics.h"
#include "fleet/data/batch.h"
#include "fleet/ops/batch_norm2d.h"
#include "fleet/ops/conv2d.h"
#include "fleet/ops/linear.h"

namespace fleet::applications {

struct ResnetOptions {
  std::array<int, 4> blocks = {3, 4, 6, 3};
  bool bottleneck = true;  // 1x1, 3x3, 1x1; otherwise two 3x3
  int64_t classes = 1000;
  int64_t width = 64;                // channels of the first stage; each stage doubles them
  bool zero_init_last_norm = false;  // every block starts as the identity
  double label_smoothing = 0;
  bool channels_last = true;  // weights and images: a third faster on the CPU
  torch::Device device = torch::kCPU;
};

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
  /// "layer1.0", "layer1.1", ...: what each block returns.
  std::vector<std::string> checkpoints() const;

 private:
  struct NamedBlock {
    std::string name;
    std::shared_ptr<ResnetBlockImpl> block;
  };

  ResnetOptions options_;
  ops::Conv2d conv1_{nullptr};
  ops::BatchNorm2d bn1_{nullptr};
  std::vector<NamedBlock> blocks_;
  ops::Linear fc_{nullptr};
};
using Resnet = Application<ResnetImpl>;

Resnet Resnet18(torch::Device device = torch::kCPU);
Resnet Resnet50(torch::Device device = torch::kCPU);
Resnet Resnet101(torch::Device device = torch::kCPU);
Resnet Resnet152(torch::Device device = torch::kCPU);

}  // namespace fleet::applications
