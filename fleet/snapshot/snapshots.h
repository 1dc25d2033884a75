// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fleet/core/process/stop_request.h"
#include "fleet/snapshot/data_position.h"
#include "fleet/snapshot/snapshot_contents.h"
#include "fleet/snapshot/snapshot_loader.h"
#include "fleet/snapshot/snapshot_options.h"
#include "fleet/train/distributed_optimizer.h"

namespace fleet {

class SnapshotLock;
class SnapshotWriter;

/// Saves a training periodically, and resumes it: after N updates, a snapshot and a new process,
/// the next M updates are those of a run that was never interrupted, bit for bit.
///
/// Making one locks the folder for the job until its end, sees that all ranks can write there and
/// that a snapshot has room, and resumes, if there is a snapshot: make it after the optimizers,
/// their data and the variables that it keeps, before the first update. Training stands still for a
/// copy in memory alone; the disk is written behind it, and an error of that comes out of the next
/// call that saves, or of `finish`. A process that is killed leaves the last complete snapshot.
///
/// It also stops the training in order: when any rank gets SIGTERM or SIGUSR1, or calls
/// `request_stop`, all ranks save after the same update and throw `Stopped`, of which `run_main`
/// makes exit code 143. The same command resumes from there.
///
/// All ranks make the same calls. Without a folder in `options` nothing is saved. One at a time on
/// a thread, over all that is trained there: of two, a process that is killed between their saves
/// would leave snapshots of different moments.
///
/// In an elastic job (fleetrun --elastic) this is also where a restarted rank joins: the
/// constructor waits until the others admit it, which they do in `after_update`, and receives their
/// state. So between a call of `after_update` and the next update a loop makes no calls between
/// ranks.
///
///   fleet::Snapshots snapshots(optimizer, config.snapshots, train);
///   for (int64_t epoch = snapshots.epoch(); epoch < config.epochs; ++epoch) {
///     for (const auto& batch : train.epoch(epoch)) {
///       optimizer.minimize(batch, loss);
///       snapshots.after_update();
///     }
///     optimizer.end_epoch();
///     snapshots.after_epoch();
///   }
///   snapshots.finish();
class Snapshots {
 public:
  /// `values`: variables of the program's own that are saved and resumed with the training.
  Snapshots(DistributedOptimizer& optimizer, const SnapshotOptions& options,
            const DataPosition& data = {}, const std::vector<SnapshotValue>& values = {});
  /// Several optimizers by name, which are saved at the same point.
  ///
  ///   fleet::Snapshots snapshots(config.snapshots,
  ///                              {.optimizers = {{"generator", &g}, {"discriminator", &d}},
  ///                               .data = train,
  ///                               .values = {{"best_loss", &best_loss}}});
  Snapshots(const SnapshotOptions& options, SnapshotContents contents);
  ~Snapshots();
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  /// The number of the snapshot that this run resumed from: its updates, those of all optimizers
  /// together.
  std::optional<int64_t> resumed() const { return resumed_; }

  /// The one that the data are in: where a loop over epochs begins.
  int64_t epoch() const { return contents_.data.epoch(); }
  /// And the batch of it.
  int64_t batch() const { return contents_.data.next_update(); }

  /// Saves at every multiple of `save_every` updates, of all optimizers together: never within an
  /// accumulation window of `minimize(closure)`, and after the last batch of an epoch only by
  /// `after_epoch`. Saves and throws Stopped when the ranks were asked to stop.
  enum class Next { kUpdate, kEnd };
  /// `next`: kEnd where the loop leaves off before the end of its data; `finish` saves then.
  void after_update(Next next = Next::kUpdate);
  /// After `optimizer.end_epoch()`: saves when it is due, or, without `save_every`, always. Stops
  /// like `after_update`.
  void after_epoch();
  /// Now.
  void save();
  /// At the end, on all ranks, before `fleet::shutdown`: saves what no snapshot has yet, and
  /// returns when all is on the disk.
  void finish();

  /// How long the last snapshot held training up, without waiting for the one before.
  double copy_seconds() const;

 private:
  void resume();
  void join();
  void admit_ranks();
  bool is_due() const;
  bool is_end_unsaved() const;
  bool should_stop();
  [[noreturn]] void stop();

  /// Refuses a second Snapshots on this thread.
  class SingleInstance {
   public:
    explicit SingleInstance(const std::string& dir);
    ~SingleInstance();
    SingleInstance(const SingleInstance&) = delete;
    SingleInstance& operator=(const SingleInstance&) = delete;

   private:
    std::thread::id thread_ = std::this_thread::get_id();
  };

  SingleInstance single_instance_;
  StopSignals signals_;
  SnapshotOptions options_;
  SnapshotContents contents_;
  std::optional<int64_t> resumed_;
  int64_t last_step_ = 0;
  bool stops_after_epoch_ = false;
  std::unique_ptr<SnapshotLock> lock_;      // null: without a folder
  std::unique_ptr<SnapshotWriter> writer_;  // likewise
};

/// One snapshot more in `dir`, on the disk when it returns; nothing is removed. All ranks call it.
void save_snapshot(const std::filesystem::path& dir, const SnapshotContents& contents);
void save_snapshot(const std::filesystem::path& dir, DistributedOptimizer& optimizer,
                   const DataPosition& data = {});

}  // namespace fleet
