// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/applications/application.h"
#include "fleet/data/batch.h"

namespace fleet::applications {

/// What samples are made of: tools ask for the sizes that belong to it.
enum class SampleKind { kTokens, kPixels };

/// How a model is to be made.
struct ModelRequest {
  int64_t outputs = 0;  // vocabulary, or number of classes; 0: the model's own
  int64_t length = 0;   // of a sample: tokens, or pixels of a side; 0: the usual
  bool dropout = true;  // false: none
  torch::Device device = torch::kCPU;
  torch::ScalarType dtype = torch::kFloat;
};

/// A model of any application, without its type, with its synthetic task. Batches follow from their
/// size and seed.
struct AnyModel {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<std::string> checkpoints;
  std::function<Loss(int64_t samples, int64_t seed)> loss;
  std::function<torch::Tensor(int64_t samples, int64_t seed)> loss_of_metrics;
};

/// One size of an application.
struct Preset {
  std::string_view name;  // "bert-large"
  AnyModel (*make)(const ModelRequest& request);
};

/// A size that learns the synthetic task within seconds: Adam brings the loss on samples that
/// training does not see from above `first_loss` to below `last_loss`.
struct Trial {
  AnyModel (*make)(const ModelRequest& request);
  int64_t samples = 32;  // of a batch
  int64_t updates = 100;
  double lr = 1e-3;
  double first_loss = 0;
  double last_loss = 0;
  std::string_view program;        // of apps/
  std::vector<std::string> flags;  // with which it trains a model as small
};

/// An application as `fleet convert`, `fleet plan` and the tests of all applications see it. Each
/// returns its own beside its model; applications.cpp lists them.
struct ApplicationEntry {
  std::string_view name;  // the area of its errors and options: "bert"
  SampleKind samples = SampleKind::kPixels;
  bool has_dropout = true;
  std::vector<Preset> presets;
  Trial trial;
};

/// A `model` whose options have a `synthetic_batch(options, samples, seed, length)` beside them.
template <typename Model>
AnyModel any_model(const Model& model, const ModelRequest& request, int64_t usual_length) {
  const auto dtype = request.dtype;
  const bool is_converted = dtype != torch::kFloat;
  if (is_converted) model.ptr()->to(dtype);
  const auto length = request.length > 0 ? request.length : usual_length;
  const auto draw = [=](int64_t samples, int64_t seed) {
    auto batch = synthetic_batch(model.options(), samples, seed, length);
    if constexpr (std::same_as<decltype(batch), Batch>) {
      if (is_converted) batch.data = batch.data.to(dtype);
    }
    return batch;
  };
  return {.module = model.ptr(),
          .checkpoints = model.checkpoints(),
          .loss = [=](int64_t samples, int64_t seed) -> Loss {
            return model.loss(draw(samples, seed));
          },
          .loss_of_metrics = [=](int64_t samples,
                                 int64_t seed) { return model.metrics(draw(samples, seed)).loss; }};
}

}  // namespace fleet::applications
