#include "fleet/train/snapshots.h"

#include "fleet/train/snapshot_writer.h"

namespace fleet {

Snapshots::Snapshots(DistributedOptimizer& optimizer, const SnapshotOptions& options,
                     const DataPosition& data)
    : optimizer_(optimizer), options_(options), data_(data) {
  if (options_.snapshot_dir.empty()) return;
  resumed_ = load_snapshot(options_.snapshot_dir, optimizer_, data_);
  last_step_ = optimizer_.attempts();
  writer_ = std::make_unique<SnapshotWriter>(optimizer_, options_, data_);
}

Snapshots::~Snapshots() = default;

bool Snapshots::is_due() const {
  return writer_ && options_.save_every > 0 && !optimizer_.is_in_window() &&
         optimizer_.attempts() - last_step_ >= options_.save_every;
}

void Snapshots::after_update() {
  if (is_due() && !data_.is_at_epoch_start()) save();
}

void Snapshots::after_epoch() {
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
