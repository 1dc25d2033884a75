// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fleet/memory/plan/profile/step_profile.h"

namespace fleet::memory {

/// What becomes of the values that the ops [begin, end) save, if they are a segment of a plan, and
/// what that takes. Says nothing about other segments.
struct SegmentOutcome {
  enum class Decision : char {
    kNone,       // a replay input of this segment
    kHeld,       // from its forward until its backward is over
    kRegion,     // recomputed with the segment
    kSelective,  // recomputed with what its op made
  };
  struct Entry {
    int block = 0;
    Decision decision = Decision::kNone;
    int released = StepProfile::kNever;   // held until the backward of this op is over
    int asked = -1;                       // the first op whose backward needs it
    int first_save = -1, last_save = -1;  // ops of the segment that save it; -1: none
  };
  /// What one op made, recomputed by one replay.
  struct Selective {
    struct Value {
      int block = 0;
      int first_save = 0;  // it stays until the backward of this op is over
    };
    int maker = 0;
    int starts = 0;      // the backward of this op starts the replay
    int64_t bytes = 0;   // of the values
    int64_t height = 0;  // the most that the replay takes, the values included
    std::vector<Value> values;
    std::vector<int> ops;  // that the replay calls
  };
  /// A block while the segment is replayed: from the op that makes it to the end of its last
  /// reader, or of the replay.
  struct Replayed {
    int block = 0;
    int made = 0, until = 0;
  };

  int begin = 0, end = 0;
  std::vector<Entry> entries;  // blocks that are saved or held, each once
  std::vector<Selective> selective;
  std::vector<int> inputs;    // blocks from before it that a replay may start from
  std::vector<int> replayed;  // ops of the segment's replay, in order
  std::vector<Replayed> replayed_blocks;
  int starts = -1;     // the op whose backward starts the segment's replay; -1: nothing is replayed
  double seconds = 0;  // of all replays
  int64_t mask_bytes = 0;
};

/// Follows the rules of the tape for one segment at a time.
class SegmentSimulation {
 public:
  explicit SegmentSimulation(const StepProfile& profile);

  /// `recomputed`: by op, of the whole plan.
  SegmentOutcome simulate(int begin, int end, bool is_dropped, const std::vector<char>& recomputed);

 private:
  struct Graph;  // what a RecomputeSearch sees of the profile
  SegmentOutcome::Entry& entry_of(int block);
  void hold(int block, int asks, int until);
  void save(int block, int op, bool is_dropped);
  bool select(int block, int op);
  void replay_region(const std::vector<int>& blocks, int first_saving);
  void list_replayed_blocks();
  void find_inputs(bool is_dropped);
  int64_t height_of(const SegmentOutcome::Selective& selective);
  const StepProfile::Block& block(int number) const {
    return profile_.blocks[static_cast<size_t>(number)];
  }
  const StepProfile::Op& op(int number) const { return profile_.ops[static_cast<size_t>(number)]; }

  const StepProfile& profile_;
  // Of the segment that is followed:
  SegmentOutcome outcome_;
  const std::vector<char>* recomputed_ = nullptr;
  std::vector<int> region_;
  // Empty between calls; by block: its entry, and the last op of a replay that reads it; by op: its
  // place in `selective`.
  std::vector<int> entry_of_, last_reader_, selective_of_;
};

}  // namespace fleet::memory
