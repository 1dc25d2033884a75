// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <torch/nn/module.h>

namespace fleet::applications {

/// A module that only gives its children a common part of their names.
///
///   auto& attention = name_group(layer, "attention");
///   query = name_group(attention, "self").register_module("query", Linear(64, 64));
inline torch::nn::Module& name_group(torch::nn::Module& parent, const std::string& name) {
  return *parent.register_module(name, std::make_shared<torch::nn::Module>());
}

}  // namespace fleet::applications
