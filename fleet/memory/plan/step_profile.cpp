// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/step_profile.h"

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

}  // namespace fleet::memory
