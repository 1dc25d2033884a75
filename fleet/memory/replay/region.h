// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fleet/memory/eviction/eviction_pool.h"
#include "fleet/memory/tape/kept_value.h"
#include "fleet/memory/tape/op_record.h"
#include "fleet/memory/tape/provenance_table.h"

namespace fleet::memory {

/// An interval of a forward whose values can be recomputed by calling its ops again. Regions nest:
/// the replay of an inner one starts from values that the outer one recomputes.
///
/// It is owned by what autograd saved inside it, and freed with the last of these.
class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(std::shared_ptr<Region> parent, std::shared_ptr<const ProvenanceTable> provenance,
         int first_op);
  ~Region();

  /// `other` is this region or inside of it.
  bool contains(const Region* other) const;
  const std::shared_ptr<Region>& parent() const { return parent_; }
  int first_op() const { return first_op_; }

  /// The innermost region that contains both.
  static Region* common(Region* a, Region* b);

  /// A value that this region recomputes once it has been evicted.
  void add(const std::shared_ptr<KeptValue>& kept);

  /// For selective recomputation inside its parent of what one op made: replay inputs beside those
  /// of its ops, and the ops.
  void keep_replay_input(std::shared_ptr<KeptValue> kept);
  void add_records(const std::vector<std::shared_ptr<OpRecord>>& records);
  bool is_selective() const { return is_selective_; }

  struct Dropped {
    int64_t values = 0, bytes = 0;
    std::vector<std::pair<std::string, int64_t>> kept;  // op and bytes of what cannot be recomputed
  };
  /// While the tape records into it, `records` of the open segment are where its ops are found;
  /// null once `drop` or `hand_over` has been called.
  void set_open_records(const OpRecords* records);
  /// Its forward ended with an error before it was closed: what was evicted is lost.
  void abandon();

  /// Evicts the values added to it, as far as they can be recomputed, and keeps those of `records`,
  /// its own, that this takes.
  Dropped drop(const std::vector<std::shared_ptr<OpRecord>>& records);
  /// Its values may be evicted at any moment, from now on, by this pool.
  void evict_on_demand();
  EvictionPool* pool() { return pool_.get(); }
  /// Then `drop` is this: values stay where they are, and the records that they need are kept.
  Dropped keep_records(const std::vector<std::shared_ptr<OpRecord>>& records);
  /// The reverse: the values stay, and belong to the outer region; null: to none.
  void hand_over(Region* outer);
  /// The mask of a dropout that is about to be evicted is kept as bits, since random numbers are
  /// slow.
  static void keep_mask_bits(OpRecord& record, int save, const torch::Tensor& mask);

  /// Replays the ops that its evicted values need, and no others. Of values that are evicted on
  /// demand, only `asked` is recomputed, and what that computes anyway.
  void recompute(const std::shared_ptr<KeptValue>& asked);

  /// Regions in this process.
  static int64_t alive();

 private:
  std::vector<std::shared_ptr<KeptValue>> members();
  std::span<const std::shared_ptr<OpRecord>> records_now() const;
  OpRecord* find_record(int op) const;
  Dropped keep_needed(const std::vector<std::shared_ptr<OpRecord>>& records,
                      std::vector<std::shared_ptr<KeptValue>>& needing);
  std::shared_ptr<KeptValue> find_resident(int value, uint32_t version) const;

  std::shared_ptr<Region> parent_;
  std::shared_ptr<const ProvenanceTable> provenance_;
  int first_op_;
  int depth_;
  bool is_selective_ = false;
  std::vector<std::weak_ptr<KeptValue>> members_;
  std::vector<std::shared_ptr<KeptValue>> replay_inputs_;
  std::vector<std::shared_ptr<OpRecord>> records_;
  const OpRecords* open_records_ = nullptr;
  bool is_abandoned_ = false;
  std::unique_ptr<EvictionPool> pool_;
  std::unordered_map<int, std::vector<std::weak_ptr<KeptValue>>> by_value_;  // of a pool's values
  std::recursive_mutex mutex_;
};

}  // namespace fleet::memory
