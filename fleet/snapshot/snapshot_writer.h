// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fleet/comm/communicator.h"
#include "fleet/snapshot/snapshot_contents.h"
#include "fleet/snapshot/snapshot_copy.h"
#include "fleet/snapshot/snapshot_lock.h"
#include "fleet/snapshot/snapshot_options.h"
#include "fleet/snapshot/snapshot_records.h"
#include "fleet/snapshot/snapshot_tensors.h"

namespace fleet {

/// Copies the training state into buffers of its own, and writes it to disk from there in a
/// background thread while training continues. One at a time: the next waits. Rank 0 writes what
/// all ranks have in common, each rank what is its own, and the snapshot appears when all have done
/// so.
///
/// Holds a copy of what this rank writes. In an elastic job there is none: `save` returns when all
/// is on the disk. The ranks that are there make the snapshot, as if there were no others; when one
/// is lost meanwhile they repeat it.
class SnapshotWriter {
 public:
  /// All ranks make one. `lock` outlives it.
  SnapshotWriter(SnapshotContents contents, SnapshotOptions options, const SnapshotLock& lock);
  /// Waits, and says what went wrong.
  ~SnapshotWriter();
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  void save();
  /// Until the last one is on the disk; throws what went wrong with it.
  void wait();
  /// Of the last `save`: how long training stood still for the copy alone.
  double copy_seconds() const { return copy_seconds_; }
  /// What the tensors take that this rank writes.
  int64_t bytes() const;
  /// Of the largest file that it writes.
  int64_t largest_file() const;

 private:
  struct Job;
  using Tensors = std::vector<NamedTensor>;

  void finish_pending_averages();
  std::vector<SnapshotTensors> live() const;
  void copy();
  Job make_job() const;
  void write(const Job& job);
  void write_with_present_ranks(Job job);
  bool is_complete() const { return comm_->present() == writers_; }
  void check_same_step(int64_t step);
  class Files;
  /// What lies in a folder.
  struct Written {
    FileHashes hashes;
    int64_t bytes = 0;
  };
  Written write_files(const std::filesystem::path& folder, const Job& job) const;
  Written gather(const Written& own, const Job& job);
  int64_t together(const char* what, const std::function<int64_t()>& work);

  SnapshotContents contents_;
  SnapshotOptions options_;
  const SnapshotLock& lock_;
  std::shared_ptr<comm::Communicator> comm_;  // the writing threads' own
  std::vector<SnapshotCopy> copies_;          // of the optimizers, then of the models
  std::future<void> written_;
  double copy_seconds_ = 0;
  std::vector<int> writers_;  // of the snapshot that is being written
};

}  // namespace fleet
