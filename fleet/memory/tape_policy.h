#pragma once

#include <string_view>

#include <torch/types.h>

#include "fleet/memory/op_record.h"

namespace fleet::memory {

class Tape;

/// Says what becomes of the values that a forward saves for its backward. A forward is cut into
/// segments, numbered from 0; what crosses a cut is kept, whoever else treats it how.
class TapePolicy {
 public:
  enum class Treatment : char {
    kKeep,
    kDrop,        // rebuilt in backward; given up when the segment ends, so never in the last one
    kDropAtOnce,  // given up as soon as the user's program lets go of it
  };

  virtual ~TapePolicy() = default;
  /// Whether a segment ends before the op that is about to run.
  virtual bool cut_before_op(const Tape& /*tape*/, const OpTraits& /*op*/) { return false; }
  /// Whether one ends before a stretch that `fleet::recompute` calls. Inside of it none does.
  virtual bool cut_before_recompute(const Tape& /*tape*/) { return false; }
  /// Whether one ends at `fleet::checkpoint(x, name)`.
  virtual bool cut_at(std::string_view /*name*/) { return false; }
  virtual Treatment treatment(int /*segment*/) { return Treatment::kDrop; }
  /// Whether what this segment made leaves, where there is somewhere to go; asked when it ends.
  virtual bool sends_out(int /*segment*/) { return true; }
  /// Whether the values that this op made are rebuilt one by one, each when it is asked for, from
  /// what else is kept; in a segment that is dropped, from what else is rebuilt.
  virtual bool rebuilds_results_of(const OpRecord& /*op*/) { return false; }
  /// The op that is about to run changes in place what op `made` made. With a cut between the two
  /// it would be kept: no replay writes to what lies outside its segment.
  virtual void changes(int /*made*/, int /*op*/) {}
  /// `fleet::checkpoint(x, name)` was called; asked before `cut_at`.
  virtual void meets(std::string_view /*name*/, const torch::Tensor& /*x*/) {}
};

}  // namespace fleet::memory
