// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fleet::memory {

/// Which parts of a file are in use. Free neighbours merge, a request takes the smallest gap that
/// holds it, and the file grows only when there is none.
class ExtentList {
 public:
  /// `limit`: the file may not grow past it.
  explicit ExtentList(int64_t limit) : limit_(limit) {}

  /// The offset of `bytes` free bytes; empty if the file would grow past the limit.
  std::optional<int64_t> take(int64_t bytes);
  void give(int64_t offset, int64_t bytes);

  int64_t used() const { return used_; }
  /// Where the last extent in use ends.
  int64_t end() const { return end_; }

 private:
  const int64_t limit_;
  int64_t end_ = 0;
  int64_t used_ = 0;
  std::map<int64_t, int64_t> gaps_;  // offset to length, none touching another or the end
};

}  // namespace fleet::memory
