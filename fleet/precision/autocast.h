// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/core/torch/cast_rules.h"

namespace fleet::precision {

/// The low precision and its exceptions.
struct AutocastOptions {
  torch::ScalarType dtype = torch::kBFloat16;  ///< or torch::kHalf

  // Names of LibTorch's ops, without namespace: "softmax", "layer_norm", "gelu".
  std::vector<std::string> custom_white_list = {};  ///< run in `dtype`
  std::vector<std::string> custom_black_list = {};  ///< run in fp32
};

/// In which precision ops run inside an AutocastScope: LibTorch's autocast, with custom lists on
/// top. Parameters stay as they are and get gradients of their own type. Made once, since the lists
/// are checked here, with everything that is wrong in one error.
///
/// An op that LibTorch's lists name runs its inside in that precision: a black "softmax" is not
/// seen by "scaled_dot_product_attention", which LibTorch runs in low precision as a whole.
///
///   const precision::Autocast autocast({.custom_black_list = {"softmax"}});
///   torch::Tensor loss;
///   {
///     const precision::AutocastScope scope(autocast);
///     loss = net->forward(x);
///   }
///   loss.backward();  // outside: backward follows the types of forward
class Autocast {
 public:
  explicit Autocast(const AutocastOptions& options = {});

  torch::ScalarType dtype() const { return dtype_; }

 private:
  friend class AutocastScope;

  torch::ScalarType dtype_;
  compat::CastRules rules_;
};

/// Autocast on this thread, for CPU and CUDA tensors, while it lives; other threads are not
/// touched. Scopes nest: the inner one holds, lists included, and afterwards the outer one again.
/// Weights that were cast are kept until the outermost scope ends, so that a weight that is used
/// twice is cast once.
class AutocastScope {
 public:
  explicit AutocastScope(const Autocast& autocast) : AutocastScope(&autocast) {}
  /// Does nothing for null, so that a switch needs no second path.
  explicit AutocastScope(const Autocast* autocast);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  struct DeviceState {
    bool enabled = false;
    torch::ScalarType dtype = torch::kFloat;
  };

  std::optional<compat::CastRulesScope> rules_;  // empty: does nothing
  std::array<DeviceState, 2> previous_;
  bool changes_dtype_ = false;
};

}  // namespace fleet::precision
