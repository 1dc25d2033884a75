// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/offload/extent_list.h"

#include <iterator>

#include "fleet/core/error.h"

namespace fleet::memory {

std::optional<int64_t> ExtentList::take(int64_t bytes) {
  auto best = gaps_.end();
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap)
    if (gap->second >= bytes && (best == gaps_.end() || gap->second < best->second)) best = gap;
  int64_t offset = end_;
  if (best != gaps_.end()) {
    const int64_t rest = best->second - bytes;
    offset = best->first;
    gaps_.erase(best);
    if (rest > 0) gaps_[offset + bytes] = rest;
  } else {
    if (bytes > limit_ - end_) return {};
    end_ += bytes;
  }
  used_ += bytes;
  return offset;
}

void ExtentList::give(int64_t offset, int64_t bytes) {
  used_ -= bytes;
  FLEET_ASSERT(used_ >= 0 && offset + bytes <= end_, "an extent was given back twice");
  auto after = gaps_.lower_bound(offset);
  if (after != gaps_.end() && after->first == offset + bytes) {
    bytes += after->second;
    after = gaps_.erase(after);
  }
  if (after != gaps_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      gaps_.erase(before);
    }
  }
  if (offset + bytes == end_)
    end_ = offset;
  else
    gaps_[offset] = bytes;
}

}  // namespace fleet::memory
