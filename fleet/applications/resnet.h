#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace fleet::applications {

struct ResnetOptions {
  std::array<int, 4> blocks = {3, 4, 6, 3};
  bool bottleneck = true;  // 1x1, 3x3, 1x1; otherwise two 3x3
  int64_t classes = 1000;
  bool zero_init_last_norm = false;  // every block starts as the identity
};

/// He et al., arXiv 1512.03385, with the stride on the 3x3 as in torchvision, whose parameter names
/// and shapes it has ("layer1.0.conv1.weight").
class ResnetImpl : public torch::nn::Module {
 public:
  explicit ResnetImpl(const ResnetOptions& options);
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::array<torch::nn::Sequential, 4> layers_{torch::nn::Sequential(nullptr), nullptr, nullptr,
                                               nullptr};
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(Resnet);

}  // namespace fleet::applications
