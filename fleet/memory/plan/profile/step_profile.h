// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "fleet/memory/plan/profile/graph_use.h"
#include "fleet/memory/plan/profile/op_cost.h"

namespace fleet::memory {

/// One forward and backward, as measured: what a plan is made from.
struct StepProfile {
  static constexpr int kNever = std::numeric_limits<int>::max();

  /// A storage that the forward made.
  struct Block {
    int64_t bytes = 0;
    int made = 0;                   // op
    int dead = kNever;              // before this op the user's program had freed it
    bool is_mask = false;           // of a dropout: kept as bits when it is evicted
    int64_t element_size = 4;       // of a mask
    bool can_offload = false;       // once only backward holds it
    std::vector<int> writers = {};  // ops that changed it in place
  };

  struct Op {
    std::string name;
    double seconds = 0;
    double replay_seconds = 0;   // in a replay; estimated if it was not replayed
    int64_t transient = 0;       // bytes allocated and freed inside it
    int64_t made_bytes = 0;      // of its results
    int64_t constant_bytes = 0;  // of inputs that a replay fills with one number
    std::vector<int> saves;      // blocks that autograd saved
    std::vector<int> reads;      // blocks
    std::vector<int> needs;      // ops that made what it reads
    std::vector<int> makes;      // blocks
    bool can_replay = true;
    bool is_view = false;
    bool is_inside_recompute = false;  // and not its first op: no cut can come before it
    OpCost cost;
    /// The most that a replay takes beside what is replayed before it and its results.
    int64_t replay_transient() const {
      return (transient > made_bytes ? transient - made_bytes : 0) + constant_bytes;
    }
    // Of the backward node that read its saves:
    bool has_backward = false;
    int64_t gradient_bytes = 0;      // alive beside what the forward made
    int64_t backward_transient = 0;  // above that, until the next such node
    double backward_seconds = 0;     // without replays
  };

  /// Bytes of a mask once it is evicted.
  static int64_t bits_of(const Block& mask) { return mask.bytes / (8 * mask.element_size); }

  std::vector<Block> blocks;
  std::vector<Op> ops;
  std::vector<int> checkpoints;  // ops before which `fleet::checkpoint` was called
  int64_t base = 0;              // alive before the forward: parameters, gradients, data
  double forward_seconds = 0;
  double backward_seconds = 0;    // without replays
  double recompute_overhead = 0;  // seconds of each recomputation, beside its ops
  int64_t measured_peak = 0;      // of the measured step, as it was run
  GraphUse graph;

  double plain_seconds() const { return forward_seconds + backward_seconds; }
  int64_t saved_bytes() const;
  /// The same program on so many times as much data: bytes and times grow with it, the base and the
  /// ops stay. An estimate: what does not depend on the data, such as copies of weights, is scaled
  /// too.
  StepProfile scaled(double factor) const;
};

}  // namespace fleet::memory
