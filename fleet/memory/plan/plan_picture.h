// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fleet::memory {

struct Plan;
struct StepProfile;

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

/// What plans for this step cost, from the least memory to all that plain training takes.
std::vector<PlanPicture::Point> time_over_memory(const StepProfile& profile);

/// Plain training and a plan for it, as SVG.
std::string draw_plan(const StepProfile& profile, const Plan& plan, const std::string& title);

}  // namespace fleet::memory
