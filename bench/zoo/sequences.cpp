// SPDX-License-Identifier: Apache-2.0
// A recurrent net, and one that never repeats.

#include <random>

#include <torch/torch.h>

#include "bench/zoo/zoo.h"

namespace fleet::zoo {
namespace {

using torch::Tensor;

struct Lstm final : Net {
  static constexpr int64_t kSteps = 100, kInputs = 32, kWidth = 64;
  explicit Lstm(const NetOptions& o) : Net(o, 16) {
    layers = register_module("layers", torch::nn::LSTM(torch::nn::LSTMOptions(kInputs, kWidth)
                                                           .num_layers(3)
                                                           .bidirectional(true)
                                                           .dropout(0.1)
                                                           .batch_first(true)));
    out = register_module("out", torch::nn::Linear(2 * kWidth, kInputs));
  }
  Tensor loss(int64_t update) override {
    const auto x = noise(*this, {samples(), kSteps, kInputs}, update);
    return (out(std::get<0>(layers(x))) - x).square().mean();
  }
  torch::nn::LSTM layers{nullptr};
  torch::nn::Linear out{nullptr};
};

// In every update another number of layers, each of a width of its own, some with a branch.
struct Changing final : Net {
  static constexpr int64_t kLayers = 16, kWidth = 256;
  explicit Changing(const NetOptions& o) : Net(o, 512) {
    for (int64_t i = 0; i < kLayers; ++i) {
      const auto number = std::to_string(i);
      up.push_back(register_module("up" + number, torch::nn::Linear(kWidth, 2 * kWidth)));
      down.push_back(register_module("down" + number, torch::nn::Linear(2 * kWidth, kWidth)));
      norms.push_back(register_module("norm" + number,
                                      torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}))));
    }
  }
  Tensor loss(int64_t update) override {
    std::mt19937_64 random(static_cast<uint64_t>(update) + 1);
    const auto x = noise(*this, {samples(), kWidth}, update);
    auto y = x;
    const auto depth = kLayers / 2 + random() % (kLayers / 2 + 1);
    for (size_t i = 0; i < depth; ++i) {
      const auto width = static_cast<int64_t>(kWidth / 2 + random() % (3 * kWidth / 2));
      const auto inner = torch::linear(norms[i](y), up[i]->weight.narrow(0, 0, width),
                                       up[i]->bias.narrow(0, 0, width));
      const auto wide = random() % 2 == 0 ? torch::gelu(inner) : torch::tanh(inner) * inner;
      const auto back = torch::linear(torch::dropout(wide, 0.1, is_training()),
                                      down[i]->weight.narrow(1, 0, width), down[i]->bias);
      y = random() % 3 == 0 ? back : y + back;
    }
    return (y - x).square().mean();
  }
  std::vector<torch::nn::Linear> up, down;
  std::vector<torch::nn::LayerNorm> norms;
};

}  // namespace

std::shared_ptr<Net> lstm(const NetOptions& options) { return std::make_shared<Lstm>(options); }
std::shared_ptr<Net> changing(const NetOptions& options) {
  return std::make_shared<Changing>(options);
}

}  // namespace fleet::zoo
