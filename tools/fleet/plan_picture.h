// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fleet::tool {

/// Two charts beside each other: memory over one step, and time over memory.
struct PlanPicture {
  struct Line {
    std::string name;
    std::vector<int64_t> forward, backward;  // bytes, op by op in the order of the step
  };
  struct Point {
    int64_t bytes = 0;
    double seconds = 0;
  };

  std::string title;
  int64_t budget = 0;
  std::vector<Line> lines;
  std::vector<Point> curve;  // by rising memory

  std::string svg() const;
};

}  // namespace fleet::tool
