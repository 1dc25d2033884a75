// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

namespace torch::nn {
class Module;
}

namespace fleet {

/// A parameter or buffer under its name in the model.
struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

/// Whatever a user calls "the model": a module, a holder made by TORCH_MODULE, or a shared pointer.
/// A module passed by reference must outlive what is built on it; the others are kept alive.
///
///   Net net;                                  // TORCH_MODULE(Net)
///   fleet::optim::Adam adam(net, {.lr = 1e-3});
class ModelHandle {
 public:
  ModelHandle(torch::nn::Module& module) : module_(&module) {}  // NOLINT: implicit on purpose

  template <typename M>
  ModelHandle(std::shared_ptr<M> module)  // NOLINT: implicit on purpose
      : owner_(module), module_(module.get()) {}

  template <typename Holder>
  requires requires(const Holder& holder) { holder.ptr().get(); }
  ModelHandle(const Holder& holder)  // NOLINT: implicit on purpose
      : owner_(holder.ptr()), module_(holder.ptr().get()) {}

  torch::nn::Module& module() const { return *module_; }

  /// In order of registration; a tensor that several modules share appears under each of its names.
  std::vector<NamedTensor> parameters() const;
  std::vector<NamedTensor> buffers() const;

 private:
  std::shared_ptr<void> owner_;
  torch::nn::Module* module_;
};

}  // namespace fleet
