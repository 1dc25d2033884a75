// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <torch/types.h>

#include "fleet/memory/tape/op_record.h"

namespace fleet::memory {

class Tape;

/// What becomes of the values that a forward saves for its backward. A forward is cut into
/// segments, numbered from 0; what crosses a cut is kept, or offloaded.
class TapePolicy {
 public:
  enum class Treatment : char {
    kKeep,
    kDrop,  // recomputed in backward; evicted when the segment ends, so never in the last one
    kEvictEagerly,   // recomputed in backward; freed as soon as the user's program frees it
    kEvictOnDemand,  // kept until memory is short, then evicted in the order of an EvictionPool
  };

  virtual ~TapePolicy() = default;
  /// Whether a segment ends before the op that is about to run.
  virtual bool cut_before_op(const Tape& /*tape*/, const OpTraits& /*op*/) { return false; }
  /// Whether one ends before a call of `fleet::recompute`. None ends inside.
  virtual bool cut_before_recompute(const Tape& /*tape*/) { return false; }
  /// Whether one ends at `fleet::checkpoint(x, name)`.
  virtual bool cut_at(std::string_view /*name*/) { return false; }
  virtual Treatment treatment(int /*segment*/) { return Treatment::kDrop; }
  /// Whether what this segment made is offloaded, if the tape has an Offload; asked when it ends.
  virtual bool offloads(int /*segment*/) { return true; }
  /// Whether the results of this op are recomputed selectively: each when backward reads it, from
  /// what is kept, or in a segment that is dropped from what the segment recomputes.
  virtual bool recomputes_results_of(const OpRecord& /*op*/) { return false; }
  /// The op that is about to run changes a result of op `made` in place. With a cut between the two
  /// it would be kept: no replay writes to values from outside its segment.
  virtual void on_in_place_write(int /*made*/, int /*op*/) {}
  /// `fleet::checkpoint(x, name)` was called; asked before `cut_at`.
  virtual void on_checkpoint(std::string_view /*name*/, const torch::Tensor& /*x*/) {}
};

}  // namespace fleet::memory
