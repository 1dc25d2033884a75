#pragma once

#include <memory>
#include <string>

#include <c10/util/SmallVector.h>
#include <torch/types.h>

namespace fleet::memory {

class AwayMemory;
class Region;

/// One value, as it was at one moment, that a backward or a replay will ask for. Its bytes are here
/// (shared with the user's tensor, as autograd itself would), away in a file, or given up to be
/// rebuilt by a Region.
class KeptValue : public std::enable_shared_from_this<KeptValue> {
 public:
  /// Where a replay meets it: a value of the Ledger at a time, or the n-th tensor that autograd
  /// saved inside an op. Neither: nowhere, so it is never given up.
  struct Origin {
    int value = -1;
    uint32_t version = 0;    // writes to its memory before
    int time = 0;            // before the op of this index runs
    bool is_view = false;    // of the value's memory, with another shape than the value
    int64_t from_value = 0;  // of a view: its offset, counted from the value's
    int op = -1;
    int save = -1;
  };

  KeptValue(const torch::Tensor& tensor, const Origin& origin);
  ~KeptValue();

  const Origin& origin() const { return origin_; }
  void is_no_view() { origin_.is_view = false; }
  bool is_here() const { return tensor_.defined(); }
  /// Here, and nobody wrote to it since.
  bool is_intact() const;
  bool has_geometry_of(const torch::Tensor& tensor) const;
  int64_t bytes() const { return bytes_; }
  const torch::Tensor& tensor() const { return tensor_; }

  /// The bytes, fetched if they are away, rebuilt if they were given up. Throws when somebody wrote
  /// to them since.
  torch::Tensor get();

  /// A replay will read it: from now on, a recorded op that writes to its memory leaves it a copy.
  void become_source();
  bool is_source() const { return is_source_; }

  /// Who rebuilds it; null: nobody.
  std::shared_ptr<Region> region() const { return region_.lock(); }
  void set_region(const std::shared_ptr<Region>& region) { region_ = region; }

  /// Its memory goes to a file; the first who asks brings it back, and then it stays.
  void leave(std::shared_ptr<AwayMemory> away);
  bool is_away() const { return away_ && !is_here(); }

  void give_up();
  void give_up_rebuilt() {
    if (was_rebuilt_) give_up();
  }
  /// The user's program passed it again while it was given up.
  void take_back(const torch::Tensor& tensor);
  /// A replay made it again; `tensor` has the same memory layout as the first time.
  void refill(const torch::Tensor& tensor);
  /// Throws unless a replay of `op` saved what the first run did.
  void check_same(const torch::Tensor& tensor, const std::string& op) const;
  /// Its memory is about to change: it moves out.
  void copy_out();

  int readers() const { return readers_; }
  void add_reader() { ++readers_; }
  void remove_reader() { --readers_; }
  /// For backward: the bytes, which go again once every reader has had them after a rebuild.
  torch::Tensor read();

  /// An op is about to write to this tensor: sources that it overlaps get copies. Others in the
  /// same storage, such as parameters of one arena, do not.
  static void before_write(const torch::Tensor& tensor);
  /// It has: what lies beside the tensor may share its version counter, and is as it was.
  static void after_write(const torch::Tensor& tensor);
  /// Copies made by that, so far in this process.
  static int64_t copies();
  /// Values that writes have to look out for now.
  static int64_t listed_sources();

 private:
  void check_version() const;
  void come_back();
  void hold(torch::Tensor tensor);
  void let_go();
  void list_as_source();
  void unlist();

  torch::Tensor tensor_;
  Origin origin_;
  std::weak_ptr<Region> region_;
  std::shared_ptr<AwayMemory> away_;
  c10::SmallVector<int64_t, 5> sizes_, strides_;
  int64_t offset_ = 0;
  int64_t bytes_ = 0;
  torch::ScalarType dtype_;
  uint32_t version_ = 0;
  const c10::StorageImpl* listed_in_ = nullptr;  // among the sources
  int readers_ = 0;
  int reads_left_ = 0;  // after a rebuild
  bool is_source_ = false;
  bool is_strided_ = false;
  bool is_conj_ = false, is_neg_ = false;
  bool is_own_ = false;   // memory that nobody else can write to
  bool is_lost_ = false;  // somebody wrote to it unseen, for good
  bool was_rebuilt_ = false;
};

}  // namespace fleet::memory
