#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fleet/memory/kept_value.h"
#include "fleet/memory/ledger.h"
#include "fleet/memory/op_record.h"

namespace fleet::memory {

/// A stretch of a forward whose values can be made again, by calling its ops again. Regions nest:
/// an inner one is replayed from values that the outer one rebuilds.
///
/// It is owned by what autograd saved inside it, and goes with the last of these.
class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(std::shared_ptr<Region> parent, std::shared_ptr<const Ledger> ledger, int first_op);
  ~Region();

  /// `other` is this region or lies in it.
  bool contains(const Region* other) const;
  const std::shared_ptr<Region>& parent() const { return parent_; }
  int first_op() const { return first_op_; }

  /// The innermost region that contains both.
  static Region* common(Region* a, Region* b);

  /// A value that this region is to rebuild once it has been given up.
  void add(const std::shared_ptr<KeptValue>& kept);

  /// For a region that rebuilds a single value inside its parent: what it starts from, beside what
  /// its ops keep.
  void own_source(std::shared_ptr<KeptValue> kept) { sources_.push_back(std::move(kept)); }
  bool is_for_one_value() const { return is_for_one_value_; }
  void set_records(std::vector<std::shared_ptr<OpRecord>> records) {
    is_for_one_value_ = true;
    records_ = std::move(records);
  }

  struct Dropped {
    int64_t values = 0, bytes = 0;
    std::vector<std::pair<std::string, int64_t>> kept;  // op and bytes of what cannot be made again
  };
  /// While the tape records into it, `records` of the open segment are where its ops are found;
  /// null once `drop` or `hand_over` has been called.
  void set_open_records(const OpRecords* records);
  /// Its forward ended with an error before it was closed: what was evicted is gone.
  void abandon();

  /// Gives up the values added to it, where the ops can make them again, and keeps of `records`,
  /// which are its own, what that takes.
  Dropped drop(const std::vector<std::shared_ptr<OpRecord>>& records);
  /// The reverse: they stay, and are the outer region's to give up; null: nobody's.
  void hand_over(Region* outer);
  /// A mask that a dropout made and that is about to be given up is remembered as bits, since to
  /// draw it again takes long.
  static void remember_mask(OpRecord& record, int save, const torch::Tensor& mask);

  /// Replays what the values that were given up and are still wanted need, and no more.
  void rebuild();

  /// Regions that something still counts on, in this process.
  static int64_t alive();

 private:
  std::vector<std::shared_ptr<KeptValue>> members();
  std::vector<std::shared_ptr<OpRecord>> records_now() const;

  std::shared_ptr<Region> parent_;
  std::shared_ptr<const Ledger> ledger_;
  int first_op_;
  int depth_;
  bool is_for_one_value_ = false;
  std::vector<std::weak_ptr<KeptValue>> members_;
  std::vector<std::shared_ptr<KeptValue>> sources_;
  std::vector<std::shared_ptr<OpRecord>> records_;
  const OpRecords* open_records_ = nullptr;
  bool is_abandoned_ = false;
  std::recursive_mutex mutex_;
};

}  // namespace fleet::memory
