// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fleet::optim {

/// A base beside torch::optim::Optimizer for one that stands for an optimizer of another language:
/// what TorchOptimizer calls it, in place of its C++ type.
///
///   class Adapter : public torch::optim::Optimizer, public fleet::optim::TorchOptimizerName {
///     std::string type_name() const override { return "torch.optim.RMSprop"; }
///   };
class TorchOptimizerName {
 public:
  virtual ~TorchOptimizerName() = default;
  virtual std::string type_name() const = 0;

 protected:
  TorchOptimizerName() = default;
  TorchOptimizerName(const TorchOptimizerName&) = default;
  TorchOptimizerName& operator=(const TorchOptimizerName&) = default;
};

}  // namespace fleet::optim
