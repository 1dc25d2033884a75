#pragma once

#include <cstdint>

namespace fleet {

/// What recompute and offload did during one call of `minimize`.
struct MemoryReport {
  int64_t segments = 0;        // that backward makes again, over all parts
  int64_t given_up = 0;        // values
  int64_t given_up_bytes = 0;  // of them
  int64_t kept_by_need = 0;    // values inside such segments that no replay can make again
  int64_t kept_by_need_bytes = 0;
  int64_t offloaded_bytes = 0;  // written to the file
  int64_t fetched_bytes = 0;    // read from it; less when they were needed before they had left
  double offload_stall_s = 0;   // waited for the disk
};

}  // namespace fleet
