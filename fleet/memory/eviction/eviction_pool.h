// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include <c10/util/SmallVector.h>

#include "fleet/memory/tape/kept_value.h"
#include "fleet/memory/tape/op_record.h"
#include "fleet/memory/tape/tape_values.h"

namespace fleet::memory {

/// The values of one segment that may be evicted at any moment, and the order in which they are:
/// by seconds of recomputation per byte, and by how long it will be until backward reads them.
///
/// Invariants:
/// - Every candidate can be recomputed by its region, whatever else is evicted.
/// - A storage is evicted with all candidates in it, and only if nothing else holds it: what the
///   user's program, a node of the backward or a running replay holds is never chosen.
/// - Only the thread that records the forward, or that last read a value in backward, evicts.
///
/// Costs: two clock readings per op. A scan looks at every resident candidate; the evictions of the
/// next sixteenth of what is live follow its order, with scores brought up to date.
class EvictionPool {
 public:
  /// Ops are numbered from `first_op` on.
  explicit EvictionPool(int first_op);
  ~EvictionPool();
  EvictionPool(const EvictionPool&) = delete;
  EvictionPool& operator=(const EvictionPool&) = delete;

  /// Called with a value just before it is evicted.
  void set_before_evict(std::function<void(const KeptValue&)> before) {
    before_evict_ = std::move(before);
  }
  /// Called with the bytes that an eviction freed, which may be none, and the seconds that it took.
  void set_evicted(std::function<void(int64_t bytes, double seconds)> evicted) {
    evicted_ = std::move(evicted);
  }

  // In forward, in the order of the ops.
  void add_op(const OpRecord& record, const TapeValues& values, double seconds);
  /// Op `reader`, the last that was added, saved it: a value that can be recomputed.
  void add(const std::shared_ptr<KeptValue>& kept, int storage, int reader);
  void forward_ended() { is_forward_ = false; }

  /// In backward: op `op`'s saved tensors are read.
  void reached(int op);
  /// Evicted values that a replay of `op` computes anyway.
  template <typename F>
  void for_each_evicted_of(int op, F&& f) const {
    for (const auto& entry : at(op).values) {
      if (auto kept = entry.lock(); kept && !kept->is_resident()) f(kept);
    }
  }

  /// A value that is not evicted while it lives: a replay is about to return it.
  class Pin {
   public:
    Pin(EvictionPool& pool, const KeptValue& kept) : pool_(pool) { pool.pinned_.push_back(&kept); }
    ~Pin() { pool_.pinned_.pop_back(); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    EvictionPool& pool_;
  };

  /// Evicts values of all pools of this thread, whichever have the least score, until `bytes` are
  /// freed. Returns what was.
  static int64_t evict(int64_t bytes);

 private:
  struct Op {
    double seconds = 0;
    double clock = 0;  // when it ended, in seconds of the forward's ops
    c10::SmallVector<int, 4> parents, children;
    c10::SmallVector<std::weak_ptr<KeptValue>, 2> values;  // made by it, or saved inside it
    int component = -1;                                    // of evicted ops; -1: none
    int seen = 0;                                          // by the walk of this number
  };
  struct Component {
    int parent = -1;  // union-find
    double seconds = 0;
  };
  struct Candidate {
    std::weak_ptr<KeptValue> kept;
    int op = 0;                     // that makes it
    c10::SmallVector<int, 2> uses;  // ops whose backwards read it, in the order of the forward
    bool is_result = true;
  };
  struct Group;  // candidates in one storage
  struct Order;  // in which groups are evicted

  bool contains(int op) const { return op >= first_op_ && op < first_op_ + std::ssize(ops_); }
  Op& at(int op) { return ops_[static_cast<size_t>(op - first_op_)]; }
  const Op& at(int op) const { return ops_[static_cast<size_t>(op - first_op_)]; }
  static bool is_resident(const Op& op);
  int root_of(int component);
  struct Neighbourhood;  // evicted ops that depend on a value, or it on them
  Neighbourhood neighbourhood_of(const Candidate& candidate);
  void join(const Candidate& candidate);
  double distance_of(const Candidate& candidate) const;
  bool is_evictable(const KeptValue& kept) const;
  bool is_evictable(const Group& group) const;
  std::vector<Group> groups();
  void set_score(Group& group);
  void evict(const Group& group);
  static void scan(const std::vector<EvictionPool*>& pools);

  int first_op_;
  std::vector<Op> ops_;
  std::vector<Component> components_;
  std::vector<Candidate> candidates_;
  std::unordered_map<const KeptValue*, size_t> index_;  // of candidates
  std::unordered_map<int, int> maker_;                  // by storage id: the last op that wrote it
  std::function<void(const KeptValue&)> before_evict_;
  std::function<void(int64_t, double)> evicted_;
  int position_ = 0;  // the op that ran last, or whose backward does
  bool is_forward_ = true;
  int walks_ = 0;
  double later_ = 0;  // seconds of the forward until backward comes to this pool's ops
  std::vector<const KeptValue*> pinned_;
  std::atomic<std::thread::id> thread_;
};

}  // namespace fleet::memory
