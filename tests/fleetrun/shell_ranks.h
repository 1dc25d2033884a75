// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/support/launched.h"

/// For shells as ranks that wait for events instead of times.

namespace fleet::launch {

/// The number that a rank has written into that file of the log folder.
inline pid_t number_in(const Launched& job, const std::string& name) {
  const auto file = job.folder() / "log" / name;
  EXPECT_TRUE(eventually([&] { return contents(file).ends_with('\n'); })) << job.output();
  return std::stoi(contents(file));
}

/// Until that file of the log folder has text.
inline std::string until_written(const std::string& name) {
  return format("until [ -s $FLEET_LOG_DIR/{} ]; do sleep 0.01; done; ", name);
}

/// Until the rank that has written its process number into `pid.RANK` of the log folder has ended.
/// It stays a zombie that all can see, for fleetrun collects it at the end.
inline std::string until_ended(int rank) {
  return until_written(format("pid.{}", rank)) +
         format(
             "read -r other < $FLEET_LOG_DIR/pid.{}; "
             "until read -r number name state rest < /proc/$other/stat && [ $state = Z ]; do :; "
             "done; ",
             rank);
}

}  // namespace fleet::launch
