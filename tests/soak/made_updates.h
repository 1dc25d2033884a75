// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <sstream>
#include <string>

namespace fleet::launch {

/// Updates that one rank has made, over all the processes that it had, by the lines of
/// recovery_program.cpp ("step 7 loss ...") and elastic_program.cpp ("update 8 of epoch ...").
class MadeUpdates {
 public:
  void add(const std::string& log) {
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string word;
      int64_t number = 0;
      if (!(words >> word >> number) || (word != "step" && word != "update")) continue;
      ++made_;
      numbers_.insert(number);
    }
  }

  int64_t useful() const { return static_cast<int64_t>(numbers_.size()); }
  /// Since the last snapshot, or the last average, when a fault came.
  int64_t repeated() const { return made_ - useful(); }

 private:
  int64_t made_ = 0;
  std::set<int64_t> numbers_;
};

}  // namespace fleet::launch
