// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace fleet::zoo {

struct NetOptions {
  int64_t samples = 0;  // 0: the net's own
  torch::Device device = torch::kCPU;
  torch::Dtype dtype = torch::kFloat;  // of parameters and inputs
};

/// A net of a shape that people train, at its usual depth and a small width, with a batch of its
/// own. Written as users write nets: nothing in it knows of Fleet.
class Net : public torch::nn::Module {
 public:
  /// Of the batch of this update, which is the same whenever it is asked for.
  virtual torch::Tensor loss(int64_t update) = 0;

  int64_t samples() const { return samples_; }
  void set_samples(int64_t samples) { samples_ = samples; }
  torch::Device device() const { return device_; }
  torch::Dtype dtype() const { return dtype_; }

 protected:
  Net(const NetOptions& options, int64_t own_samples)
      : device_(options.device),
        dtype_(options.dtype),
        samples_(options.samples > 0 ? options.samples : own_samples) {}

 private:
  torch::Device device_;
  torch::Dtype dtype_;
  int64_t samples_;
};

struct Entry {
  std::string_view name;
  std::string_view what;
  bool changes;  // other ops in every update
  std::shared_ptr<Net> (*make)(const NetOptions& options);
};

const std::vector<Entry>& entries();
/// Throws an Error with the nearest name if there is none.
std::shared_ptr<Net> make_net(std::string_view name, const NetOptions& options = {});

/// Normal random numbers, the same for the same update; on meta, their shape.
torch::Tensor noise(const Net& net, at::IntArrayRef sizes, int64_t update);

// One function per net; `entries` lists them.
std::shared_ptr<Net> gpt(const NetOptions& options);
std::shared_ptr<Net> encoder_decoder(const NetOptions& options);
std::shared_ptr<Net> vision_transformer(const NetOptions& options);
std::shared_ptr<Net> mixture_of_experts(const NetOptions& options);
std::shared_ptr<Net> convnext(const NetOptions& options);
std::shared_ptr<Net> unet(const NetOptions& options);
std::shared_ptr<Net> densenet(const NetOptions& options);
std::shared_ptr<Net> squeezenet(const NetOptions& options);
std::shared_ptr<Net> vgg_bn(const NetOptions& options);
std::shared_ptr<Net> lstm(const NetOptions& options);
std::shared_ptr<Net> changing(const NetOptions& options);

}  // namespace fleet::zoo
