#pragma once

#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "fleet/memory/kept_value.h"
#include "fleet/memory/memory_counter.h"
#include "fleet/memory/offload_file.h"
#include "fleet/memory/op_cost.h"
#include "fleet/memory/replay.h"

namespace fleet::memory {

/// One forward and backward, as measured: what a plan is made from.
struct StepProfile {
  static constexpr int kNever = std::numeric_limits<int>::max();

  /// A piece of memory that the forward made.
  struct Block {
    int64_t bytes = 0;
    int made = 0;                   // op
    int dead = kNever;              // before this op the user's program had let go of it
    bool is_mask = false;           // of a dropout: kept as bits when it is given up
    int64_t element_size = 4;       // of a mask
    bool can_leave = false;         // for a file, once nobody but backward holds it
    std::vector<int> writers = {};  // ops that changed it in place
  };

  struct Op {
    std::string name;
    double seconds = 0;
    double replay_seconds = 0;  // when it is called again; as `seconds` where nobody did
    int64_t transient = 0;      // bytes that came and went inside it
    int64_t made_bytes = 0;     // of its results
    std::vector<int> saves;     // blocks that autograd saved
    std::vector<int> reads;     // blocks
    std::vector<int> needs;     // ops that made what it reads
    std::vector<int> makes;     // blocks
    bool can_replay = true;
    bool is_view = false;
    bool is_inside_recompute = false;  // with others before it in there: no cut can come before it
    OpCost cost;
    // Of the backward node that asked for its saves:
    bool has_backward = false;
    int64_t gradient_bytes = 0;      // alive beside what the forward made
    int64_t backward_transient = 0;  // above that, until the next such node
    double backward_seconds = 0;     // without replays
  };

  /// What a mask takes once it is given up.
  static int64_t bits_of(const Block& mask) { return mask.bytes / (8 * mask.element_size); }

  std::vector<Block> blocks;
  std::vector<Op> ops;
  std::vector<int> checkpoints;  // ops before which `fleet::checkpoint` was called
  int64_t base = 0;              // alive before the forward: parameters, gradients, data
  double forward_seconds = 0;
  double backward_seconds = 0;  // without replays
  int64_t measured_peak = 0;    // of the step that was measured, as it was run

  double plain_seconds() const { return forward_seconds + backward_seconds; }
  int64_t saved_bytes() const;
};

/// Measures a step: given to a Tape, and asked for the result after backward.
class Profiler final : public ReplayListener {
 public:
  explicit Profiler(MemoryCounter& counter);
  /// What waits in memory for this file, or was read ahead, is not the step's own.
  void leave_out(std::shared_ptr<const OffloadFile> file) { file_ = std::move(file); }

  // From the tape, in this order for every op.
  void op_begins(int op);
  void op_returned();
  StepProfile::Op& op() { return profile_.ops.back(); }
  int add_block(const StepProfile::Block& block);
  void kept(int block, const std::shared_ptr<KeptValue>& kept);
  StepProfile::Block& block(int number) { return profile_.blocks[static_cast<size_t>(number)]; }
  void checkpoint_before(int op) { profile_.checkpoints.push_back(op); }
  void forward_ended();

  // From what the tape left behind.
  void unpacking();
  // `handed_out`: bytes that only the backward node holds now.
  void unpacked(int op, int64_t handed_out);
  void replayed(int op, double seconds) override;
  void rebuilt(double seconds) override;

  /// After backward.
  StepProfile finish();

 private:
  using Clock = std::chrono::steady_clock;
  int64_t held_bytes();
  int64_t mask_bits_until(int op) const;
  void close_node();
  void close_op();

  MemoryCounter& counter_;
  std::shared_ptr<const OffloadFile> file_;
  StepProfile profile_;
  std::vector<std::pair<int, std::weak_ptr<KeptValue>>> kept_;  // with block
  Clock::time_point began_, op_began_, node_began_;
  bool in_forward_ = true;
  bool had_inner_backward_ = false;  // since the last op: gradients taken inside the forward
  double rebuild_seconds_of_node_ = 0;
  int64_t op_live_ = 0, node_live_ = 0;
  int node_ = -1;  // the op whose backward runs
  int64_t node_handed_out_ = 0;
};

}  // namespace fleet::memory
