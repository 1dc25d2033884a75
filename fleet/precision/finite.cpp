// SPDX-License-Identifier: Apache-2.0
#include "fleet/precision/finite.h"

#include "fleet/core/torch/cast_rules.h"

namespace fleet::precision {

bool all_finite(const torch::Tensor& tensor) {
  const compat::NoAutocastScope no_autocast;
  const torch::NoGradGuard no_grad;
  if (tensor.is_sparse()) return all_finite(tensor._values());
  if (!tensor.is_floating_point() && !tensor.is_complex()) return true;
  // NaN and infinity survive a sum, whatever else is added. A sum of finite numbers may overflow
  // too; only then is each element looked at, which takes 30 times as long.
  const auto low = tensor.scalar_type() == torch::kHalf || tensor.scalar_type() == torch::kBFloat16;
  const auto sum = low ? tensor.sum(torch::kFloat) : tensor.sum();
  return sum.isfinite().item<bool>() || tensor.isfinite().all().item<bool>();
}

std::optional<std::string> first_non_finite(const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined() && !all_finite(tensor)) return name;
  }
  return std::nullopt;
}

}  // namespace fleet::precision
