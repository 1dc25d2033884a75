#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <torch/types.h>

#include "fleet/core/torch_compat.h"
#include "fleet/memory/away_memory.h"
#include "fleet/memory/kept_value.h"
#include "fleet/memory/op_record.h"
#include "fleet/memory/region.h"

namespace fleet::memory {

class Profiler;
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

/// What one forward saved, and what became of it.
struct TapeReport {
  int64_t ops = 0;
  int64_t segments = 0;
  int64_t saves = 0;        // tensors that autograd saved
  int64_t saved_bytes = 0;  // of what the forward made; a value saved twice counts twice
  int64_t given_up = 0;     // values to be rebuilt
  int64_t given_up_bytes = 0;
  int64_t kept_by_need = 0;  // values that no replay can make again
  int64_t kept_by_need_bytes = 0;
  std::map<std::string, int64_t> kept_ops;  // bytes of these by op
};

/// Records the ops of one forward as the user calls them, with what autograd saves while they run,
/// and cuts it into regions that can be replayed. Lives on the forward's thread, as long as the
/// forward; what it leaves behind is owned by what autograd saved.
class Tape final : public compat::OpObserver, public compat::SaveObserver {
 public:
  /// With a profiler, the step is measured too; with `offload`, values leave for its file.
  explicit Tape(TapePolicy& policy, std::shared_ptr<Profiler> profiler = nullptr,
                const Offload* offload = nullptr);
  ~Tape() override;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// The one that records this thread's ops; null for none.
  static Tape* current();

  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;
  std::unique_ptr<compat::SavedTensor> save(const torch::Tensor& tensor) override;

  /// The value named by `fleet::checkpoint` is there.
  void checkpoint(std::string_view name, const torch::Tensor& x);
  /// A stretch to be recomputed whatever the policy says. They nest, and no segment ends inside.
  void open_region();
  void close_region(TapePolicy::Treatment treatment);

  int next_op() const { return next_op_; }
  int segment() const { return segment_; }
  /// Saved by autograd in this segment, in memory made in it.
  int64_t segment_bytes() const { return segment_bytes_; }
  /// How many pieces of memory, made in this segment, the user's program still holds: what would
  /// cross a cut here. Counts no further than `limit` + 1.
  int live_in_segment(int limit) const;
  const TapeReport& report() const { return report_; }

 private:
  struct Seen;    // a tensor of the user's program
  struct Memory;  // what a storage is to the tape
  struct Slot;
  class Saved;

  int memory_of(const torch::Tensor& tensor, Region* home);
  int value_of(const torch::Tensor& tensor, int producer, Region* home);
  uint32_t version_of(int value) const;
  Region* home_of(int value) const;
  bool is_inside(int value) const;
  enum class Use : char { kSource, kSave, kSaveOfView };
  std::shared_ptr<KeptValue> kept(int value, const torch::Tensor& tensor, int time, Use use);
  void add_input(OpRecord& record, const torch::Tensor& tensor, int argument, int element);
  void read_arguments(OpRecord& record, const torch::jit::Stack& stack);
  void read_results(OpRecord& record, const torch::jit::Stack& stack);
  void make_way(const OpRecord& record) const;
  bool may_be_called_again(const OpRecord& record) const;
  void keep_inputs(OpRecord& record);
  std::shared_ptr<KeptValue> kept_for(Slot& slot, int value);
  void settle(Slot& slot, OpRecord* record);
  int value_saved(const Slot& slot, int memory, const OpRecord* record) const;
  void treat(Slot& slot, OpRecord* record);
  bool rebuild_alone(Slot& slot, OpRecord& producer);
  bool rebuild_from_bits(Slot& slot, OpRecord& producer);
  void give_to(const std::shared_ptr<Region>& alone, Slot& slot);
  bool can_rebuild(const Ledger::Value& value) const;
  bool collect(int value, uint32_t version, int time, std::map<int, std::shared_ptr<OpRecord>>& ops,
               std::vector<std::shared_ptr<KeptValue>>& sources);
  bool collect_op(int op, std::map<int, std::shared_ptr<OpRecord>>& ops,
                  std::vector<std::shared_ptr<KeptValue>>& sources);
  int block_of(int memory);
  void profile_before(const OpRecord& record);
  void profile_after(const OpRecord& record);
  void profile_save(const Slot& slot, const OpRecord& record);
  void cut();
  void list_for_offload();
  void send_out();
  void open(TapePolicy::Treatment treatment);
  void close();
  const std::shared_ptr<Region>& region() const { return open_.back().region; }

  struct Open {
    std::shared_ptr<Region> region;
    TapePolicy::Treatment treatment;
  };
  struct Argument {  // of the op that runs
    torch::Tensor tensor;
    size_t input;
  };

  TapePolicy& policy_;
  const Offload* offload_;
  std::shared_ptr<Profiler> profiler_;
  std::vector<int> watched_;  // memories that the user held when last seen
  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<Region> root_;
  std::vector<Open> open_;
  std::vector<std::shared_ptr<Region>> regions_;  // homes of memory
  std::vector<std::shared_ptr<OpRecord>> records_;
  std::vector<char> can_rebuild_;  // by record: alone from what its region keeps
  int first_record_ = 0;           // op of records_[0]
  int next_op_ = 0;
  int segment_ = 0;
  int64_t segment_bytes_ = 0;
  size_t segment_first_value_ = 0;
  std::vector<Seen> values_;
  std::vector<Memory> memories_;
  std::set<int> may_leave_;         // memories, of segments that are sent out
  std::shared_ptr<Region> closed_;  // a segment, since which nothing was sent out
  std::shared_ptr<AwayWave> wave_;  // what left last
  std::unordered_map<const c10::TensorImpl*, int> value_by_tensor_;
  std::unordered_map<const c10::StorageImpl*, int> memory_by_storage_;
  std::shared_ptr<OpRecord> running_;
  std::vector<Argument> arguments_;
  std::vector<std::shared_ptr<Slot>> saved_now_;
  TapeReport report_;
};

/// Records this thread's ops while it lives.
class TapeScope {
 public:
  explicit TapeScope(TapePolicy& policy, std::shared_ptr<Profiler> profiler = nullptr,
                     const Offload* offload = nullptr)
      : tape_(policy, std::move(profiler), offload), observers_(&tape_, &tape_) {}
  TapeScope(TapePolicy& policy, const Offload* offload) : TapeScope(policy, nullptr, offload) {}
  Tape& tape() { return tape_; }

 private:
  Tape tape_;
  compat::ObserverScope observers_;
  compat::InterceptScope intercept_;
};

}  // namespace fleet::memory
