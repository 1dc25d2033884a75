// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace fleet::testing {

/// A small random program: chains, skips, branches, views, in-place ops, random numbers,
/// buffers, steps without gradient, custom functions, gradients inside the forward, sparse, complex
/// and empty tensors; in float, double or bf16. The same number gives the same program.
/// Calls of `fleet::checkpoint` and `fleet::recompute` are part of it, and do nothing unless a
/// policy cuts or `with_recompute` is set.
class RandomProgram {
 public:
  explicit RandomProgram(uint64_t number);

  /// Everything that a forward may read or write, as at the start.
  void reset();
  /// A loss; the same calls after the same `reset()` and seed.
  torch::Tensor forward(bool with_recompute);
  std::vector<torch::Tensor> parameters() const { return parameters_; }
  std::vector<torch::Tensor> buffers() const { return buffers_; }
  /// The next numbers of its own generator.
  torch::Tensor next_numbers() { return torch::rand({4}, generator_, torch::TensorOptions()); }
  std::string text() const;

 private:
  struct Step {
    int kind = 0;
    int a = 0, b = 0, c = 0;  // operands: places in the pool, counted back from its end
    double x = 0;
    std::vector<Step> inner;  // of a call of recompute
  };
  std::vector<Step> draw(int steps, int depth);
  void run(const std::vector<Step>& steps, std::vector<torch::Tensor>& pool, bool with_recompute);
  void run(const Step& step, std::vector<torch::Tensor>& pool, bool with_recompute);
  torch::Tensor run_unusual(const Step& step, const torch::Tensor& a, const torch::Tensor& b);
  torch::Tensor sparse(int way, const torch::Tensor& a, const torch::Tensor& b) const;
  static torch::Tensor complex(int way, const torch::Tensor& a, const torch::Tensor& b);
  torch::Tensor& pick(std::vector<torch::Tensor>& pool, int place) const;
  static std::string text(const std::vector<Step>& steps, int depth);

  std::mt19937_64 random_;
  torch::ScalarType dtype_;
  at::Generator generator_;
  std::vector<Step> steps_;
  std::vector<torch::Tensor> parameters_, buffers_, start_;
  torch::Tensor data_, indices_;
  int checkpoints_ = 0;
};

}  // namespace fleet::testing
