#include "fleet/train/snapshots.h"

#include "fleet/comm/elastic_group.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/io/snapshot_folder.h"
#include "fleet/train/hand_over.h"
#include "fleet/train/snapshot_writer.h"

namespace fleet {

Snapshots::Snapshots(DistributedOptimizer& optimizer, const SnapshotOptions& options,
                     const DataPosition& data)
    : optimizer_(optimizer), options_(options), data_(data) {
  const auto& group = optimizer_.comm()->elastic();
  if (group && group->is_joining()) {
    join();
  } else {
    resume();
  }
  if (options_.snapshot_dir.empty()) return;
  writer_ = std::make_unique<SnapshotWriter>(optimizer_, options_, data_);
}

Snapshots::~Snapshots() = default;

void Snapshots::resume() {
  if (options_.snapshot_dir.empty()) return;
  resumed_ = load_snapshot(options_.snapshot_dir, optimizer_, data_);
  check_all_present(*optimizer_.comm(), "while a snapshot was read");
  last_step_ = optimizer_.attempts();
}

void Snapshots::join() {
  if (!data_.is_known()) {
    throw Error("elastic",
                format("rank {} came back, and cannot be told where in the data the others are",
                       optimizer_.comm()->rank()),
                "make fleet::Snapshots with the data");
  }
  optimizer_.comm()->elastic()->join();
  hand_over(optimizer_, data_, last_step_, HandOverSide::kTakes);
  resumed_ = optimizer_.attempts();
  log::info_here("elastic",
                 format("goes on with the others after update {}, at batch {} of epoch {}",
                        optimizer_.updates(), batch(), epoch()));
}

// Only where those who come can begin their loop as the others go on with theirs.
void Snapshots::let_in() {
  const auto& group = optimizer_.comm()->elastic();
  auto* const local = optimizer_.local_sgd();
  const bool is_moment = group && local && local->is_common_moment() && data_.is_known() &&
                         !data_.is_at_epoch_start() && !optimizer_.is_in_window();
  if (!is_moment || std::ssize(group->present()) == group->size()) return;
  if (!group->admit().empty()) hand_over(optimizer_, data_, last_step_, HandOverSide::kGives);
}

bool Snapshots::is_due() const {
  return writer_ && options_.save_every > 0 && !optimizer_.is_in_window() &&
         optimizer_.attempts() - last_step_ >= options_.save_every;
}

// At the end of its epoch a rank has `end_epoch` before it, and all others have to come along:
// with local SGD they may have more batches.
bool Snapshots::is_time_to_stop() {
  if (!optimizer_.is_stopping() || stops_after_epoch_ || optimizer_.is_in_window()) return false;
  const auto at_end = torch::full({1}, data_.is_at_epoch_start() ? 1 : 0, torch::kLong);
  optimizer_.comm()->all_reduce(at_end, comm::ReduceOp::kMax, "where ranks stop");
  stops_after_epoch_ = at_end.item<int64_t>() > 0;
  return !stops_after_epoch_;
}

void Snapshots::stop() {
  if (stop_requested()) log::info_here("stop", "this rank was asked to stop");
  if (writer_ && last_step_ != optimizer_.attempts()) save();
  finish();
  const auto text = format(
      "all ranks stop after update {}: {}", optimizer_.updates(),
      writer_ ? format("saved in {}, from where the same command goes on",
                       snapshot_folder(options_.snapshot_dir, optimizer_.attempts()).string())
              : "nothing was saved, for there is no --snapshot_dir");
  log::info("stop", text);
  optimizer_.comm()->barrier("all ranks stop");
  throw Stopped(text);
}

void Snapshots::after_update(Next next) {
  if (is_time_to_stop()) stop();
  if (is_due() && !data_.is_at_epoch_start()) save();
  if (next == Next::kUpdate) let_in();
}

void Snapshots::after_epoch() {
  if (optimizer_.is_stopping()) stop();
  if (writer_ && (options_.save_every == 0 || is_due())) save();
}

void Snapshots::save() {
  if (!writer_) return;
  last_step_ = optimizer_.attempts();
  writer_->save();
}

void Snapshots::finish() {
  if (writer_) writer_->wait();
}

double Snapshots::copy_seconds() const { return writer_ ? writer_->copy_seconds() : 0; }

void save_snapshot(const std::filesystem::path& dir, DistributedOptimizer& optimizer,
                   const DataPosition& data) {
  SnapshotWriter writer(optimizer, {.snapshot_dir = dir.string(), .keep = 0}, data);
  writer.save();
  writer.wait();
}

}  // namespace fleet
