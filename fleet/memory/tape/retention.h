// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "fleet/memory/replay/recompute_search.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/tape/kept_value.h"
#include "fleet/memory/tape/op_record.h"
#include "fleet/memory/tape/saved_slot.h"
#include "fleet/memory/tape/tape_policy.h"
#include "fleet/memory/tape/tape_report.h"
#include "fleet/memory/tape/tape_values.h"

namespace fleet::memory {

class OffloadScheduler;
class ProfileWriter;
struct Offload;

/// Decides what becomes of the values that a forward saves: kept, evicted with their segment or at
/// once, recomputed selectively, or offloaded. The policy is asked; what cannot be recomputed is
/// kept whatever it says.
///
/// Invariants: the open regions are nested, the root first, then the segment, then the calls of
/// `fleet::recompute`. The records of the open segment are found from its first op to the last; a
/// region of a closed segment has those of its own that it needs.
class Retention {
 public:
  enum class Use : char { kReplayInput, kSave, kSaveOfView };

  /// All of these must outlive it; `profile` and `offload` may be null.
  Retention(TapePolicy& policy, TapeValues& values, TapeReport& report, ProfileWriter* profile,
            const Offload* offload);
  ~Retention();
  Retention(const Retention&) = delete;
  Retention& operator=(const Retention&) = delete;

  /// The forward is over: closes what is open. The last segment is not evicted, since backward
  /// needs it first.
  void end();
  /// The forward ended with an error: what was evicted cannot be recomputed.
  void abandon();

  // Segments and regions.
  void cut();
  void open_region();
  void close_region(TapePolicy::Treatment treatment);
  /// False inside `fleet::recompute`, where no segment ends.
  bool can_cut() const { return open_.size() == 2; }
  bool has_op_in_open_recompute() const {
    return open_.size() > 2 && open_[2].region->first_op() != next_op() - 1;
  }
  const std::shared_ptr<Region>& region() const { return open_.back().region; }
  int segment() const { return segment_; }
  int64_t segment_bytes() const { return segment_bytes_; }
  int live_in_segment(int limit) const;

  // Ops.
  int next_op() const { return records_.first_op + static_cast<int>(records_.records.size()); }
  /// To be called before each op: offloads what is due.
  void offload_due();
  bool may_be_replayed(const OpRecord& record) const;
  /// `seconds`: what it took, if `needs_seconds`.
  void add(std::shared_ptr<OpRecord> record, double seconds);
  bool needs_seconds() { return pool() != nullptr; }

  // Values.
  bool is_inside(int value) const;
  /// The one KeptValue of this value as it is now, owned by the innermost region that sees both its
  /// making and this use of it.
  std::shared_ptr<KeptValue> kept(int value, const torch::Tensor& tensor, int time, Use use);
  /// Finds out what a saved tensor is, once the op that saved it is over, and decides. `record` is
  /// null for one that was saved between ops.
  void resolve(SavedSlot& slot, OpRecord* record);

 private:
  struct Open {
    std::shared_ptr<Region> region;
    TapePolicy::Treatment treatment;
  };
  // What has been recorded of the open segment.
  struct Graph {
    const OpRecords& records;
    const ProvenanceTable& provenance;
    bool can_replay(int op) const {
      const auto record = records.find(op);
      return record && record->can_replay;
    }
    const std::vector<OpInput>& inputs(int op) const { return records.find(op)->inputs; }
    bool is_available(const OpInput& input) const { return input.is_kept(); }
    Makers makers(const OpInput& input) const { return provenance.makers_of(input.value); }
  };

  /// Of the segment; null: its values are not evicted on demand.
  EvictionPool* pool() { return open_.size() > 1 ? open_[1].region->pool() : nullptr; }
  void open(TapePolicy::Treatment treatment);
  void close();

  int value_saved(const SavedSlot& slot, int storage, const OpRecord* record) const;
  std::shared_ptr<KeptValue> kept_for(SavedSlot& slot, int value);
  void apply_policy(SavedSlot& slot, OpRecord* record);
  std::shared_ptr<OpRecord> maker_behind_views(const KeptValue& kept) const;
  bool recompute_selectively(SavedSlot& slot, OpRecord& maker);
  bool recompute_from_bits(SavedSlot& slot, OpRecord& maker);
  std::shared_ptr<Region> selective_region(const KeptValue& kept, int maker);
  void assign_to(const std::shared_ptr<Region>& selective, SavedSlot& slot);

  TapePolicy& policy_;
  TapeValues& values_;
  TapeReport& report_;
  ProfileWriter* profile_;
  std::unique_ptr<OffloadScheduler> offload_scheduler_;
  std::shared_ptr<Region> root_;
  std::vector<Open> open_;
  std::vector<std::shared_ptr<Region>> regions_;  // defining regions of storages
  // Of selective recomputation in the open segment, by the op that made the values, with the
  // versions of the storages that these are in.
  struct Selective {
    std::weak_ptr<Region> region;
    std::vector<std::pair<int, uint32_t>> storages;
  };
  std::unordered_map<int, Selective> selective_;
  OpRecords records_;              // of the open segment
  RecomputeSearch<Graph> search_;  // among these
  int segment_ = 0;
  int64_t segment_bytes_ = 0;
  int segment_first_value_ = 0;
  bool has_ended_ = false;
};

}  // namespace fleet::memory
