// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/profile/step_profile.h"

#include <cmath>

namespace fleet::memory {

int64_t StepProfile::saved_bytes() const {
  std::vector<char> saved(blocks.size(), 0);
  for (const auto& op : ops) {
    for (const int block : op.saves) saved[static_cast<size_t>(block)] = 1;
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < blocks.size(); ++i) bytes += saved[i] ? blocks[i].bytes : 0;
  return bytes;
}

StepProfile StepProfile::scaled(double factor) const {
  auto profile = *this;
  const auto scale = [&](int64_t& bytes) {
    bytes = static_cast<int64_t>(std::ceil(static_cast<double>(bytes) * factor));
  };
  for (auto& block : profile.blocks) scale(block.bytes);
  for (auto& op : profile.ops) {
    for (int64_t* bytes : {&op.transient, &op.made_bytes, &op.constant_bytes, &op.gradient_bytes,
                           &op.backward_transient}) {
      scale(*bytes);
    }
    for (double* amount :
         {&op.seconds, &op.replay_seconds, &op.backward_seconds, &op.cost.flops, &op.cost.bytes}) {
      *amount *= factor;
    }
  }
  profile.forward_seconds *= factor;
  profile.backward_seconds *= factor;
  profile.measured_peak -= base;
  scale(profile.measured_peak);
  profile.measured_peak += base;
  return profile;
}

}  // namespace fleet::memory
