// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/recovery.h"

#include <gtest/gtest.h>

namespace fleet::launch {

std::string reference_digest(int ranks, const Words& arguments) {
  Launched run(recovery_job(ranks, "", arguments), with({"OMP_NUM_THREADS=1"}));
  EXPECT_EQ(run.wait(std::chrono::seconds(60)), 0) << run.output();
  const auto digest = after(run.log(0), "digest");
  EXPECT_FALSE(digest.empty()) << run.output();
  return digest;
}

}  // namespace fleet::launch
