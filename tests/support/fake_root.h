// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/data/temporary_folder.h"

namespace fleet {

/// A made-up /proc and /sys, for what reads a machine's.
///
///   FakeRoot root;
///   root.write("proc/self/cgroup", "0::/job\n");
///   EXPECT_FALSE(cpu_limit(root.path()));
class FakeRoot {
 public:
  std::string path() const { return folder_.path().string(); }

  void write(const std::string& file, const std::string& text) const {
    const auto path = folder_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace fleet
