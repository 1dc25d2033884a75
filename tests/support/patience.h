// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdlib>

namespace fleet::launch {

/// FLEET_TEST_PATIENCE, 1 when it is not set: by so much the limits of tests that start programs
/// and threads are longer. scripts/busy.sh sets it for a machine that has other work.
inline double patience() {
  const char* text = std::getenv("FLEET_TEST_PATIENCE");
  const double factor = text != nullptr ? std::atof(text) : 1;
  return factor >= 1 ? factor : 1;
}

inline std::chrono::milliseconds patient(std::chrono::milliseconds limit) {
  return std::chrono::ceil<std::chrono::milliseconds>(patience() *
                                                      std::chrono::duration<double>(limit));
}

/// In seconds, for flags and variables of programs.
inline int patient_s(int seconds) {
  return static_cast<int>(
      std::chrono::ceil<std::chrono::seconds>(patient(std::chrono::seconds(seconds))).count());
}

}  // namespace fleet::launch
