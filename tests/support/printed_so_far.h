// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <sstream>
#include <string>

namespace fleet::testing {

/// What has been printed since CaptureStdout, which goes on.
inline std::string printed_so_far() {
  std::ostringstream text;
  text << std::ifstream("/proc/self/fd/1").rdbuf();
  return text.str();
}

}  // namespace fleet::testing
