// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/model_handle.h"

#include <torch/nn/module.h>

namespace fleet {
namespace {

std::vector<NamedTensor> listed(const torch::OrderedDict<std::string, torch::Tensor>& dictionary) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : dictionary) {
    if (item.value().defined()) tensors.push_back({item.key(), item.value()});
  }
  return tensors;
}

}  // namespace

std::vector<NamedTensor> ModelHandle::parameters() const {
  return listed(module_->named_parameters(/*recurse=*/true));
}

std::vector<NamedTensor> ModelHandle::buffers() const {
  return listed(module_->named_buffers(/*recurse=*/true));
}

}  // namespace fleet
