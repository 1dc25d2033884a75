#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "fleet/core/torch_compat.h"
#include "fleet/memory/departures.h"
#include "fleet/memory/kept_value.h"
#include "fleet/memory/op_record.h"
#include "fleet/memory/profile_writer.h"
#include "fleet/memory/region.h"
#include "fleet/memory/saved_slot.h"
#include "fleet/memory/tape_policy.h"
#include "fleet/memory/tape_values.h"

namespace fleet::memory {

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
  ~Tape() override;  // ends it, if nobody did
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// The forward is over. What autograd saved can be rebuilt from here on; if this throws, it
  /// cannot.
  void end();

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
  enum class Use : char { kSource, kSave, kSaveOfView };
  struct Open {
    std::shared_ptr<Region> region;
    TapePolicy::Treatment treatment;
  };

  bool is_inside(int value) const;
  std::shared_ptr<KeptValue> kept(int value, const torch::Tensor& tensor, int time, Use use);

  void add_input(OpRecord& record, const torch::Tensor& tensor, int argument, int element);
  void read_arguments(OpRecord& record, const torch::jit::Stack& stack);
  void make_way(const OpRecord& record) const;
  void after_write(const OpRecord& record) const;
  bool may_be_called_again(const OpRecord& record) const;
  void keep_inputs(OpRecord& record);
  void note_writes(const OpRecord& record);
  void read_results(OpRecord& record, const torch::jit::Stack& stack);
  bool can_rebuild(const Ledger::Value& value) const;

  int value_saved(const SavedSlot& slot, int memory, const OpRecord* record) const;
  std::shared_ptr<KeptValue> kept_for(SavedSlot& slot, int value);
  void settle(SavedSlot& slot, OpRecord* record);
  void treat(SavedSlot& slot, OpRecord* record);
  bool rebuild_alone(SavedSlot& slot, OpRecord& producer);
  bool rebuild_from_bits(SavedSlot& slot, OpRecord& producer);
  void give_to(const std::shared_ptr<Region>& alone, SavedSlot& slot);

  void open(TapePolicy::Treatment treatment);
  void close();
  void cut();
  const std::shared_ptr<Region>& region() const { return open_.back().region; }

  TapePolicy& policy_;
  TapeValues values_;
  std::optional<ProfileWriter> profile_;
  std::optional<Departures> departures_;
  std::shared_ptr<Region> root_;
  std::vector<Open> open_;
  std::vector<std::shared_ptr<Region>> regions_;  // homes of memory
  OpRecords records_;                             // of the open segment
  std::vector<char> can_rebuild_;                 // by record: alone from what its region keeps
  int next_op_ = 0;
  int segment_ = 0;
  int64_t segment_bytes_ = 0;
  int segment_first_value_ = 0;
  bool has_ended_ = false;
  TapeReport report_;
  // Of the op that runs:
  std::shared_ptr<OpRecord> running_;
  std::vector<torch::Tensor> arguments_;  // by input
  std::vector<std::shared_ptr<SavedSlot>> saved_now_;
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
