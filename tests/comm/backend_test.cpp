#define FMT_HEADER_ONLY 1
#include "fleet/comm/backend.h"

#include <chrono>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "fleet/comm/communicator.h"
#include "fleet/comm/store.h"
#include "fleet/core/error.h"

namespace fleet::comm {
namespace {

std::string refusal_of(const std::string& backend) {
  try {
    make_backend(Store::in_memory(), 0, 1,
                 {.backend = backend, .timeout = std::chrono::milliseconds(5'000)});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(BackendTest, NcclWithoutGpuOrCudaIsRefusedInWords) {
  const auto text = refusal_of("nccl");
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
