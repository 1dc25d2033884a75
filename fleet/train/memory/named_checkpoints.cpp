// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/memory/named_checkpoints.h"

#include <algorithm>
#include <string>

#include <c10/util/StringUtil.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"

namespace fleet {
namespace {

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 12;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kMost) text += format(" and {} more", names.size() - kMost);
  return text;
}

}  // namespace

NamedCheckpoints::NamedCheckpoints(const RecomputeConfigs& configs)
    : NamedCuts(configs.checkpoints),
      shape_(configs.enable_offload ? configs.checkpoint_shape : std::vector<int64_t>()) {}

void NamedCheckpoints::on_checkpoint(std::string_view name, const torch::Tensor& x) {
  if (is_checked_ || shape_.empty() || !names().contains(name)) return;
  if (x.sizes() == c10::IntArrayRef(shape_)) return;
  throw UsageError(
      "recompute",
      format("checkpoint '{}' has shape {}, and recompute_configs.checkpoint_shape says {}", name,
             c10::str(x.sizes()), c10::str(c10::IntArrayRef(shape_))),
      "leave checkpoint_shape out: it is not needed");
}

void NamedCheckpoints::check() {
  if (is_checked_) return;
  const std::vector<std::string> known(seen().begin(), seen().end());
  std::vector<std::string> problems;
  for (const auto& name : names()) {
    if (!seen().contains(name))
      problems.push_back(format("'{}'{}", name, did_you_mean(name, known)));
  }
  if (problems.empty()) {
    is_checked_ = true;
  } else if (known.empty()) {
    throw UsageError::all(
        "recompute",
        "the forward names no tensor, so it cannot be cut at these checkpoints:", problems,
        "name them in the model: x = fleet::checkpoint(layer->forward(x), \"name\")");
  } else {
    throw UsageError::all(
        "recompute", "the forward never names these checkpoints:", problems,
        format("take them out of recompute_configs.checkpoints, or name them in the model with "
               "fleet::checkpoint; it names {}",
               listed(known)));
  }
}

}  // namespace fleet
