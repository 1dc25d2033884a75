// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tools/fleet/commands.h"

namespace fleet::tool {

/// What `fleet WORDS...` prints.
inline std::string output_of(std::vector<std::string> words) {
  words.insert(words.begin(), "/usr/bin/fleet");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStdout();
  try {
    EXPECT_EQ(run(static_cast<int>(argv.size()), argv.data()), 0);
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  return ::testing::internal::GetCapturedStdout();
}

}  // namespace fleet::tool
