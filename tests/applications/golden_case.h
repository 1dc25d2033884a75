// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/types.h>

namespace fleet::testing {

/// The numbers of golden/generate.py: multiples of 1/64 in [-2, 2), in double.
inline torch::Tensor counter_numbers(uint64_t stream, const std::vector<int64_t>& shape) {
  auto out = torch::empty(shape, torch::kDouble);
  auto* values = out.data_ptr<double>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    uint64_t x = (static_cast<uint64_t>(i) + stream * 7919 + 1) * 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    x = x ^ (x >> 31);
    values[i] = (static_cast<double>(x >> 56) - 128) / 64;
  }
  return out;
}

inline torch::Tensor image_numbers(uint64_t stream, const std::vector<int64_t>& shape) {
  return counter_numbers(stream, shape) / 2 + counter_numbers(stream + 1, shape) / 256;
}

/// One file of golden/, and how a model is held against it.
class GoldenCase {
 public:
  static constexpr uint64_t kDots = 6000;

  explicit GoldenCase(const std::string& name) {
    std::ifstream file(std::string(FLEET_GOLDEN_DIR) + "/" + name + ".json");
    json_ = nlohmann::json::parse(file);
  }

  const nlohmann::json& operator[](const char* key) const { return json_[key]; }

  torch::Tensor tokens(const char* key) const {
    const auto& rows = json_["batch"][key];
    if (!rows[0].is_array()) return torch::tensor(rows.get<std::vector<int64_t>>(), torch::kLong);
    std::vector<torch::Tensor> all;
    for (const auto& row : rows) {
      all.push_back(torch::tensor(row.get<std::vector<int64_t>>(), torch::kLong));
    }
    return torch::stack(all);
  }

  /// Gives the model the case's parameters; names, shapes and order must be the library's.
  void fill(torch::nn::Module& model, torch::ScalarType dtype) const {
    model.to(dtype);
    const torch::NoGradGuard no_grad;
    const auto parameters = model.named_parameters();
    ASSERT_EQ(parameters.size(), json_["tensors"].size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& tensor = json_["tensors"][i];
      const auto& parameter = parameters[i];
      ASSERT_EQ(parameter.key(), tensor["name"].get<std::string>());
      ASSERT_EQ(parameter.value().sizes().vec(), tensor["shape"].get<std::vector<int64_t>>());
      parameter.value().copy_(counter_numbers(i, parameter.value().sizes().vec()) *
                                  tensor["scale"].get<double>() +
                              tensor["shift"].get<double>());
    }
  }

  /// The largest difference, relative to the largest magnitude.
  static double error(const torch::Tensor& got, const nlohmann::json& expected) {
    const auto values = expected.is_array() ? expected.get<std::vector<double>>()
                                            : std::vector<double>{expected.get<double>()};
    const auto wanted = torch::tensor(values, torch::kDouble);
    EXPECT_EQ(got.numel(), wanted.numel());
    if (got.numel() != wanted.numel()) return 1;
    const auto difference = (got.detach().to(torch::kDouble).flatten() - wanted).abs().max();
    return difference.item<double>() / std::max(wanted.abs().max().item<double>(), 1e-30);
  }

  /// The largest relative difference of any parameter's gradient: of its samples (root mean
  /// square), and of the whole, |got - expected| / |expected|, estimated from products with random
  /// numbers. A gradient below `floor` times the largest is measured against that: rounding is all
  /// there is of some (of a bias that the next norm takes away again), and much of others.
  double gradient_error(const torch::nn::Module& model, double floor, std::string& worst) const {
    double least_norm = 0, least_max = 0;
    for (const auto& tensor : json_["tensors"]) {
      least_norm = std::max(least_norm, floor * tensor["norm"].get<double>());
      least_max = std::max(least_max, floor * tensor["max"].get<double>());
    }
    double result = 0;
    const auto note = [&](double error, const nlohmann::json& tensor) {
      if (error > result) worst = tensor["name"];
      result = std::max(result, error);
    };
    const auto parameters = model.named_parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& tensor = json_["tensors"][i];
      const auto g = parameters[i].value().grad().contiguous().flatten().to(torch::kDouble);
      const auto samples = tensor["samples"].get<std::vector<double>>();
      const int64_t step = std::max<int64_t>(1, g.numel() / 32);
      double squares = 0;
      for (size_t s = 0; s < samples.size(); ++s) {
        const double got = g[static_cast<int64_t>(s) * step].item<double>();
        squares += std::pow(got - samples[s], 2);
      }
      note(std::sqrt(squares / static_cast<double>(samples.size())) /
               std::max(tensor["max"].get<double>(), least_max),
           tensor);
      squares = 0;  // of the product of the difference with random numbers of variance 4/3
      for (uint64_t k = 0; k < 4; ++k) {
        const double got = g.dot(counter_numbers(kDots + k, {g.numel()})).item<double>();
        squares += std::pow(got - tensor["dots"][k].get<double>(), 2);
      }
      const double difference = std::sqrt(squares / 4 * 3 / 4);
      note(difference / std::max(tensor["norm"].get<double>(), least_norm), tensor);
    }
    return result;
  }

 private:
  nlohmann::json json_;
};

}  // namespace fleet::testing
