// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace fleet::memory {

/// What one forward saved, and what became of it.
struct TapeReport {
  int64_t ops = 0;
  int64_t segments = 0;
  int64_t saves = 0;        // tensors that autograd saved
  int64_t saved_bytes = 0;  // of what the forward made; a value saved twice counts twice
  int64_t evicted = 0;      // values to be recomputed
  int64_t evicted_bytes = 0;
  int64_t not_recomputable = 0;  // values that cannot be recomputed
  int64_t not_recomputable_bytes = 0;
  std::map<std::string, int64_t> kept_ops;  // bytes of these by op
};

}  // namespace fleet::memory
