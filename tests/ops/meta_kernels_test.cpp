// SPDX-License-Identifier: Apache-2.0
// On the meta device, results and gradients have the sizes, strides and types that they have on the
// CPU.
#include <functional>

#include <gtest/gtest.h>
#include <torch/types.h>

namespace fleet::ops {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

struct Case {
  std::string name;
  Tensors inputs;  // on the CPU
  std::function<Tensor(const Tensors&)> forward;
};

std::string shape(const Tensor& x) {
  if (!x.defined()) return "none";
  std::string text = c10::toString(x.scalar_type());
  for (const auto size : x.sizes()) text += " " + std::to_string(size);
  text += " /";
  for (const auto stride : x.strides()) text += " " + std::to_string(stride);
  return text;
}

// Of the result and of each gradient.
std::vector<std::string> shapes(const Case& test, torch::Device device) {
  Tensors inputs;
  for (const auto& input : test.inputs) {
    inputs.push_back(input.detach().to(device));
    if (input.is_floating_point()) inputs.back().requires_grad_();
  }
  const auto result = test.forward(inputs);
  result.sum().backward();
  std::vector<std::string> out{shape(result)};
  for (const auto& input : inputs) out.push_back(shape(input.grad()));
  return out;
}

Tensor images(int64_t channels, torch::MemoryFormat layout = torch::MemoryFormat::Contiguous) {
  return torch::randn({2, channels, 9, 7}).contiguous(layout);
}

TEST(MetaKernelsTest, GiveTheShapesOfTheCpu) {
  const auto last = torch::MemoryFormat::ChannelsLast;
  const auto index = torch::tensor({3, 0, 3});
  const auto conv = [](std::vector<int64_t> stride, int64_t padding, int64_t dilation,
                       int64_t groups) {
    return [=](const Tensors& in) {
      return torch::conv2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), stride, padding,
                           dilation, groups);
    };
  };
  const auto batch_norm = [](bool training) {
    return [=](const Tensors& in) {
      return torch::batch_norm(in[0], in[1], in[2], torch::zeros_like(in[1]),
                               torch::ones_like(in[1]), training, 0.1, 1e-5, false);
    };
  };
  const auto layer_norm = [](const Tensors& in) {
    return torch::layer_norm(in[0], {6}, in[1], in[2]);
  };
  const auto pool = [](const Tensors& in) { return torch::adaptive_avg_pool2d(in[0], {3, 2}); };
  const std::vector<Case> cases = {
      {"index_select",
       {torch::randn({4, 5}), index},
       [](const Tensors& in) { return in[0].index_select(0, in[1]); }},
      {"index_select from behind",
       {torch::randn({2, 4}), index},
       [](const Tensors& in) { return in[0].index_select(-1, in[1]); }},
      {"embedding",
       {torch::randn({4, 5}), index.view({3, 1})},
       [](const Tensors& in) { return torch::embedding(in[0], in[1], 2); }},
      {"layer_norm", {torch::randn({3, 4, 6}), torch::randn({6}), torch::randn({6})}, layer_norm},
      {"batch_norm", {images(4), torch::randn({4}), torch::randn({4})}, batch_norm(true)},
      {"batch_norm, channels last",
       {images(4, last), torch::randn({4}), torch::randn({4})},
       batch_norm(true)},
      {"batch_norm, evaluation",
       {images(4), torch::randn({4}), torch::randn({4})},
       batch_norm(false)},
      {"conv2d", {images(4), torch::randn({6, 4, 3, 3})}, conv({1, 1}, 1, 1, 1)},
      {"conv2d with bias, strides, dilation",
       {images(4), torch::randn({6, 4, 3, 3}), torch::randn({6})},
       conv({2, 1}, 2, 2, 1)},
      {"conv2d in groups, channels last",
       {images(4, last), torch::randn({6, 2, 3, 3}).contiguous(last)},
       conv({2, 2}, 1, 1, 2)},
      {"conv_transpose2d",
       {images(4), torch::randn({4, 3, 3, 3})},
       [](const Tensors& in) {
         return torch::conv_transpose2d(in[0], in[1], {}, 2, 1, 1, /*groups=*/2);
       }},
      {"conv1d",
       {torch::randn({2, 4, 9}), torch::randn({6, 4, 3})},
       [](const Tensors& in) { return torch::conv1d(in[0], in[1], {}, 2, 1); }},
      {"relu", {images(4, last)}, [](const Tensors& in) { return torch::relu(in[0]); }},
      {"flip", {torch::randn({3, 4}).t()}, [](const Tensors& in) { return in[0].flip({1}); }},
      {"roll", {torch::randn({3, 4}).t()}, [](const Tensors& in) { return in[0].roll(1, 0); }},
      {"where",
       {torch::randn({3, 1}), torch::randn({4})},
       [](const Tensors& in) { return torch::where(in[0] > 0, in[0], in[1]); }},
      {"where, of two types",
       {torch::randn({3, 1}), torch::randn({4}, torch::kDouble)},
       [](const Tensors& in) { return torch::where(in[0] > 0, in[0], in[1]); }},
      {"log_sigmoid",
       {torch::randn({3, 4})},
       [](const Tensors& in) { return torch::log_sigmoid(in[0]); }},
      {"adaptive_avg_pool2d", {images(4)}, pool},
      {"adaptive_avg_pool2d, channels last", {images(4, last)}, pool},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.name);
    EXPECT_EQ(shapes(test, torch::kMeta), shapes(test, torch::kCPU));
  }
}

}  // namespace
}  // namespace fleet::ops
