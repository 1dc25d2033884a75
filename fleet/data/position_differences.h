// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fleet/core/text/format.h"

namespace fleet {

/// In what a saved position in the data and this run differ, for one error that lists all of it.
///
///   PositionDifferences differences;
///   differences.compare("seed", saved.seed, here.seed);
class PositionDifferences {
 public:
  template <typename T>
  void compare(const char* name, const T& saved, const T& here) {
    if (saved != here) add(format("{} was {} and is now {}", name, saved, here));
  }
  /// Their number under its name; where that is the same, their fingerprints.
  template <typename Position>
  void compare_samples(const char* name, int64_t Position::*count, const Position& saved,
                       const Position& here) {
    compare(name, saved.*count, here.*count);
    if (saved.*count == here.*count && saved.fingerprint != here.fingerprint) {
      add("the samples are others");
    }
  }
  void add(std::string problem) { found_.push_back(std::move(problem)); }

  const std::vector<std::string>& found() const { return found_; }

 private:
  std::vector<std::string> found_;
};

}  // namespace fleet
