// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <c10/util/SmallVector.h>
#include <torch/types.h>

namespace fleet::memory {

class OffloadedStorage;
class Region;

/// One value at one version, which a backward or a replay will read.
///
/// Invariants:
/// - `tensor()` is defined in kShared, kOwned and kRecomputed, and undefined in kEvicted and
///   kOffloaded.
/// - Only in kShared can other code write to its bytes. There the version counter is compared
///   before each use, and replay inputs are registered for copy-on-write.
/// - It is kEvicted only while its `region()` can recompute it.
///
/// States and moves (`move_to` checks them):
///
///   kShared      > kOwned         copy_to_own_memory(): copy-on-write
///                > kOffloaded     offload()
///                > kEvicted       evict()
///                > kLost          set_lost(), when a write that was not recorded is noticed
///   kOwned       > kOffloaded, kEvicted
///   kEvicted     > kRecomputed    refill(): by a replay
///                > kShared        take_back(): the user's program passed it again
///   kRecomputed  > kEvicted       evict(), after its last reader or at the end of backward
///                > kOffloaded     offload(); evict() of a value that was offloaded before
///   kOffloaded   > kOwned         get(): fetched, and then it stays
///                > kRecomputed, kShared
///   kLost                         none: it stays as it is until it is destroyed
///
/// A move to the state that it has already is no move. Of a lost value, get(), read() and offload()
/// throw, and evict(), copy_to_own_memory() and set_lost() do nothing: a segment evicts and a write
/// copies all their values alike, and the one that was lost has to stay, so that get() can throw.
///
/// Not thread-safe: replays are serialized by their Region.
class KeptValue : public std::enable_shared_from_this<KeptValue> {
 public:
  enum class State : char {
    kShared,      // with the user's tensor, as autograd itself would keep it
    kOwned,       // in memory of its own
    kEvicted,     // to be recomputed
    kRecomputed,  // owned, until it is evicted again
    kOffloaded,   // in a file or in the host's memory
    kLost,        // overwritten by an op that was not recorded
  };

  /// Where a replay computes it: a value of the ProvenanceTable at a time, or the n-th tensor that
  /// autograd saved inside an op. Neither: nowhere, so it is never evicted.
  struct Origin {
    int value = -1;
    uint32_t version = 0;    // writes to its storage before
    int time = 0;            // before the op of this index runs
    bool is_view = false;    // of the value's storage, with another shape than the value
    int64_t from_value = 0;  // of a view: its offset, relative to the value's
    int op = -1;
    int save = -1;
  };

  KeptValue(const torch::Tensor& tensor, const Origin& origin);
  ~KeptValue();

  const Origin& origin() const { return origin_; }
  void is_no_view() { origin_.is_view = false; }
  State state() const { return state_; }
  bool is_resident() const { return tensor_.defined(); }
  /// Resident, and not written to since.
  bool is_intact() const;
  bool has_geometry_of(const torch::Tensor& tensor) const;
  int64_t bytes() const { return bytes_; }
  const torch::Tensor& tensor() const { return tensor_; }

  /// The bytes, fetched if they are offloaded, recomputed if they were evicted. Throws if they were
  /// written to since.
  torch::Tensor get();

  /// A replay will read it: from now on, a recorded op that writes to its storage copies it first.
  void become_replay_input();
  bool is_replay_input() const { return is_replay_input_; }

  /// What recomputes it; null: nothing does.
  std::shared_ptr<Region> region() const { return region_.lock(); }
  void set_region(const std::shared_ptr<Region>& region) { region_ = region; }

  void offload(std::shared_ptr<OffloadedStorage> offloaded);
  bool is_offloaded() const { return offloaded_ && !is_resident(); }

  /// Back to the file's copy if it has one. A lost value stays.
  void evict();
  void evict_recomputed() {
    if (state_ == State::kRecomputed) evict();
  }
  void take_back(const torch::Tensor& tensor);
  /// `tensor`: from a replay, with the same strides as the first time.
  void refill(const torch::Tensor& tensor);
  /// Throws unless a replay of `op` saved what the first run did.
  void check_same(const torch::Tensor& tensor, const std::string& op) const;

  // For copy-on-write. A lost value is not copied.
  void copy_to_own_memory();
  void set_lost();
  /// The write that moved the version counter was not to this value.
  void accept_version() { version_ = tensor_._version(); }

  int readers() const { return readers_; }
  void add_reader() { ++readers_; }
  void remove_reader() { --readers_; }
  /// For backward: the bytes, which are evicted once every reader has had them after a replay.
  torch::Tensor read();

  /// Copies to own memory so far in this process.
  static int64_t copies();

 private:
  void move_to(State next);
  void check_version() const;
  void fetch();
  void own(torch::Tensor tensor);
  void release();
  void list_as_replay_input();
  void unlist();

  torch::Tensor tensor_;
  Origin origin_;
  std::weak_ptr<Region> region_;
  std::shared_ptr<OffloadedStorage> offloaded_;
  c10::SmallVector<int64_t, 5> sizes_, strides_;
  int64_t offset_ = 0;
  int64_t bytes_ = 0;
  torch::ScalarType dtype_;
  uint32_t version_ = 0;
  const c10::StorageImpl* listed_in_ = nullptr;  // among the ReplayInputs
  int readers_ = 0;
  int reads_left_ = 0;  // in kRecomputed
  State state_ = State::kShared;
  bool is_replay_input_ = false;
  bool is_strided_ = false;
  bool is_conj_ = false, is_neg_ = false;
};

}  // namespace fleet::memory
