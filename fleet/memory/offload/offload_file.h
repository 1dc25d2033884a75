// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include <torch/types.h>

namespace fleet::memory {

struct OffloadOptions {
  std::string directory;                    // empty: $TMPDIR, else /tmp
  int64_t buffer_bytes = int64_t{8} << 20;  // staging, for tensors that do not begin at a page
  int64_t max_file_bytes = std::numeric_limits<int64_t>::max();
  bool page_cache = false;  // true: through the system's page cache, even where O_DIRECT works
};

struct OffloadStatistics {
  int64_t bytes_written = 0;
  int64_t bytes_read = 0;
  double write_seconds = 0;  // of the I/O thread
  double read_seconds = 0;
  double cpu_seconds = 0;    // of it, on some core
  double stall_seconds = 0;  // that callers waited for the I/O thread
  int64_t forwarded = 0;     // tensors handed back before they were on disk
  int64_t queued_bytes = 0;  // still in memory, waiting to be written
  int64_t memory_bytes = 0;  // these, and what was prefetched and not read yet
  int64_t extent_bytes = 0;  // of the file, in use
  int64_t file_bytes = 0;    // the end of the last extent in use
};

/// Tensors on disk: written in the background, prefetched before they are needed.
///
/// An unnamed DirectFile and one thread that writes and reads. Tensors that begin at a page, as the
/// big ones of BudgetAllocator do, move without a copy. CPU tensors only; values, sizes, strides
/// and type are restored, autograd's metadata is not. Between `write` and the end of the ticket the
/// tensor must not be changed in place.
///
///   OffloadFile file;
///   auto ticket = file.write(std::move(activation));   // freed once it is on disk
///   file.prefetch(ticket);                             // some time before it is needed
///   auto back = file.read(ticket);                     // waits for what is missing
class OffloadFile {
 public:
  /// One tensor in the file. Its destructor frees the extent and the memory, and waits for a block
  /// that is being moved. May outlive the file, but then it cannot be read any more.
  class Ticket {
   public:
    Ticket() = default;
    ~Ticket();
    Ticket(Ticket&&) noexcept;
    Ticket& operator=(Ticket&&) noexcept;
    explicit operator bool() const { return entry_ != nullptr; }

   private:
    friend class OffloadFile;
    struct Entry;
    explicit Ticket(std::shared_ptr<Entry> entry);
    void drop() noexcept;
    std::shared_ptr<Entry> entry_;
  };

  /// Throws when the directory cannot hold a file.
  explicit OffloadFile(OffloadOptions options = {});
  /// Drops what is queued and waits for the one block that is being moved.
  ~OffloadFile();
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;

  /// Queues; returns at once.
  Ticket write(torch::Tensor tensor);

  /// Starts to read, into memory that it allocates. Does nothing if memory is short: `read` tries
  /// again. A tensor that is not on disk yet stays in memory instead.
  void prefetch(const Ticket& ticket);

  /// The tensor; may be called again. One that was not on disk yet is returned from memory, and
  /// stays there until the end of its ticket. Throws Error for the disk, c10::OutOfMemoryError for
  /// memory.
  torch::Tensor read(const Ticket& ticket);

  /// Waits until at most `queued_bytes` are left to be written; throws when a write failed since
  /// the last call.
  void drain(int64_t queued_bytes = 0);

  OffloadStatistics statistics() const;

  struct Speed {
    double write = 0, read = 0;  // bytes per second; 0: not known
    /// The fraction by which compute is slower while the disk is busy: about what the I/O thread
    /// takes of a core, since all threads of an op wait for the slowest.
    double compute_slowdown = 0.05;
    bool is_known() const { return write > 0 && read > 0; }
  };
  /// Writes and reads so many bytes, in blocks such as a net has. Takes as much memory meanwhile.
  Speed measure(int64_t bytes = int64_t{64} << 20);

  /// For tests: the open file.
  int descriptor() const;
  /// For tests: a slow disk. Called on the I/O thread before it writes a tensor.
  void set_write_delay(std::function<void()> delay);
  /// The same before it reads one.
  void set_read_delay(std::function<void()> delay);

  /// Called when an allocation does not fit into the budget: waits until some queued bytes of any
  /// file of this process are written and freed. False: none are queued.
  static bool wait_for_memory();

 private:
  struct Core;
  class Cores;
  std::shared_ptr<Core> core_;
};

}  // namespace fleet::memory
