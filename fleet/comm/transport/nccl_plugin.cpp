// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#include "fleet/comm/transport/nccl_plugin.h"

#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

extern "C" c10::intrusive_ptr<c10d::Backend> fleet_make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}
