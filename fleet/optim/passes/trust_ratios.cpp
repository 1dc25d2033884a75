// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/passes/trust_ratios.h"

namespace fleet::optim {

void TrustRatios::clear() {
  for (auto& span : spans_) span.is_fresh = false;
}

std::vector<TrustRatio> TrustRatios::list(const ParameterArena& arena,
                                          const std::vector<SpanSettings>& settings) const {
  std::vector<TrustRatio> result;
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (!spans_[i].is_fresh || !settings[i].use_trust_ratio) continue;
    result.push_back({.name = arena.spans()[i].name,
                      .ratio = spans_[i].ratio,
                      .value_norm = spans_[i].value_norm,
                      .update_norm = spans_[i].update_norm});
  }
  return result;
}

}  // namespace fleet::optim
