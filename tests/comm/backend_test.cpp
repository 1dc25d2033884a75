// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#include "fleet/comm/transport/backend.h"

#include <chrono>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "fleet/comm/communicator.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/core/error.h"

#include "tests/support/error_of.h"

namespace fleet::comm {
namespace {

using testing::error_message_of;

std::string refusal(const std::string& backend) {
  return error_message_of([&] {
    make_backend(Store::in_memory(), 0, 1,
                 {.backend = backend, .timeout = std::chrono::milliseconds(5'000)});
  });
}

TEST(BackendTest, NcclWithoutGpuOrCudaIsRefusedInWords) {
  const auto text = refusal("nccl");
  if (text.empty()) GTEST_SKIP() << "NCCL starts here: this machine has a GPU";
  EXPECT_NE(text.find("the NCCL backend cannot "), std::string::npos) << text;
  EXPECT_NE(text.find("use the gloo backend"), std::string::npos) << text;
#ifdef FLEET_NCCL_BUILT
  EXPECT_EQ(text.find("libfleet_nccl.so: cannot open"), std::string::npos)
      << "the plug-in was built, and libfleet does not find it: " << text;
#endif
}

}  // namespace
}  // namespace fleet::comm
