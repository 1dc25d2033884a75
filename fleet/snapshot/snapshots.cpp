// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshots.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "fleet/comm/elastic/elastic_group.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/snapshot/hand_over.h"
#include "fleet/snapshot/snapshot_folder.h"
#include "fleet/snapshot/snapshot_lock.h"
#include "fleet/snapshot/snapshot_writer.h"

namespace fleet {

namespace {

// The folder of each thread's Snapshots: a rank is a thread, where ranks share a process.
std::mutex g_mutex;
std::map<std::thread::id, std::string> g_live;

std::string called(const std::string& dir) {
  return dir.empty() ? "without a folder" : format("over {}", dir);
}

}  // namespace

Snapshots::SingleInstance::SingleInstance(const std::string& dir) {
  const std::lock_guard lock(g_mutex);
  const auto [live, is_first] = g_live.emplace(thread_, dir);
  if (is_first) return;
  throw Error("snapshot",
              format("there is a fleet::Snapshots {} already, and this is another {}: they would "
                     "save at different moments, and the first to be asked would stop the program "
                     "before the other has saved",
                     called(live->second), called(dir)),
              "make one over all that is trained: fleet::Snapshots(options, {.optimizers = "
              "{{\"generator\", &g}, {\"discriminator\", &d}}}); or let the first go out of scope");
}

Snapshots::SingleInstance::~SingleInstance() {
  const std::lock_guard lock(g_mutex);
  g_live.erase(thread_);
}

Snapshots::Snapshots(DistributedOptimizer& optimizer, const SnapshotOptions& options,
                     const DataPosition& data, const std::vector<SnapshotValue>& values)
    : Snapshots(options, SnapshotContents::of(optimizer, data, values)) {}

Snapshots::Snapshots(const SnapshotOptions& options, SnapshotContents contents)
    : single_instance_(options.snapshot_dir), options_(options), contents_(std::move(contents)) {
  contents_.check();
  const auto& group = contents_.comm()->elastic();
  if (group) check_can_hand_over(contents_);
  const bool is_joining = group && group->is_joining();
  if (!options_.snapshot_dir.empty()) {
    lock_ = std::make_unique<SnapshotLock>(
        options_.snapshot_dir, *contents_.comm(),
        is_joining ? SnapshotLock::Entry::kJoining : SnapshotLock::Entry::kCollective);
  }
  if (is_joining) {
    join();
  } else {
    resume();
  }
  if (!lock_) return;
  writer_ = std::make_unique<SnapshotWriter>(contents_, options_, *lock_);
  if (!is_joining) lock_->check_room(*contents_.comm(), *writer_);
}

Snapshots::~Snapshots() = default;

void Snapshots::resume() {
  if (options_.snapshot_dir.empty()) return;
  resumed_ = load_snapshot(options_.snapshot_dir, contents_);
  check_all_present(*contents_.comm(), "while a snapshot was read");
  last_step_ = contents_.step();
}

void Snapshots::join() {
  if (!contents_.data.is_known()) {
    throw Error("elastic",
                format("rank {} rejoined, and there is no position in the data to send to it",
                       contents_.comm()->rank()),
                "make fleet::Snapshots with the data");
  }
  contents_.comm()->elastic()->join();
  hand_over(contents_, last_step_, HandOverSide::kReceiver);
  resumed_ = contents_.step();
  log::info_here("elastic", format("continues with the others after {}, at batch {} of epoch {}",
                                   contents_.progress(), batch(), epoch()));
}

// Only at a point where the loop of an admitted rank can begin and those of the others continue.
void Snapshots::admit_ranks() {
  const auto& group = contents_.comm()->elastic();
  if (!group || std::ssize(group->present()) == group->size()) return;
  const bool is_common = std::ranges::all_of(contents_.optimizers, [](const auto& item) {
    auto* const local = item.optimizer->local_sgd();
    return local && local->is_admission_point();
  });
  const bool can_admit = is_common && contents_.data.is_known() &&
                         !contents_.data.is_at_epoch_start() && !contents_.is_in_window();
  if (!can_admit) return;
  if (!group->admit().empty()) hand_over(contents_, last_step_, HandOverSide::kSender);
}

// At multiples, so that one that was saved at another moment (SIGTERM) does not shift those after.
bool Snapshots::is_due() const {
  return writer_ && options_.save_every > 0 && !contents_.is_in_window() &&
         contents_.step() / options_.save_every > last_step_ / options_.save_every;
}

// All ranks call it, and get the same answer.
bool Snapshots::is_end_unsaved() const {
  auto& comm = *contents_.comm();
  const auto rows = comm.all_gather(
      torch::tensor({contents_.step(), last_step_, int64_t{contents_.is_in_window()}},
                    torch::kLong),
      "what the last snapshot has");
  const auto all = rows.index_select(0, torch::tensor(comm.present(), torch::kLong));
  const auto most = std::get<0>(all.max(0)), least = std::get<0>(all.min(0));
  const auto step = most[0].item<int64_t>();
  if (step == least[1].item<int64_t>()) return false;
  const bool is_common = step == least[0].item<int64_t>() && most[2].item<int64_t>() == 0;
  if (!is_common) {
    log::warn("snapshot", format("the end of the training was not saved: {}",
                                 most[2].item<int64_t>() != 0
                                     ? "an accumulation window is open"
                                     : format("one rank has made {} updates and another {}", step,
                                              least[0].item<int64_t>())));
  }
  return is_common;
}

// At the end of its epoch a rank has `end_epoch` before it, and all others have to come along:
// with local SGD they may have more batches.
bool Snapshots::should_stop() {
  if (!contents_.is_stopping() || stops_after_epoch_ || contents_.is_in_window()) return false;
  const auto at_end = torch::full({1}, contents_.data.is_at_epoch_start() ? 1 : 0, torch::kLong);
  contents_.comm()->all_reduce(at_end, comm::ReduceOp::kMax, "where ranks stop");
  stops_after_epoch_ = at_end.item<int64_t>() > 0;
  return !stops_after_epoch_;
}

void Snapshots::stop() {
  if (stop_requested()) log::info_here("stop", stop_request_text());
  if (writer_ && last_step_ != contents_.step()) save();
  finish();
  const auto text =
      format("all ranks stop after {}: {}", contents_.progress(),
             writer_ ? format("saved in {}, from where the same command resumes",
                              snapshot_folder(options_.snapshot_dir, contents_.step()).string())
                     : "nothing was saved, for there is no --snapshot_dir");
  log::info("stop", text);
  contents_.comm()->barrier("all ranks stop");
  throw Stopped(text);
}

void Snapshots::after_update(Next next) {
  if (should_stop()) stop();
  if (next == Next::kEnd) return;  // `end_epoch` is still to come
  if (is_due() && !contents_.data.is_at_epoch_start()) save();
  admit_ranks();
}

void Snapshots::after_epoch() {
  if (contents_.is_stopping()) stop();
  if (writer_ && (options_.save_every == 0 || is_due())) save();
}

void Snapshots::save() {
  if (!writer_) return;
  last_step_ = contents_.step();
  writer_->save();
}

void Snapshots::finish() {
  if (!writer_) return;
  if (is_end_unsaved()) save();
  writer_->wait();
}

double Snapshots::copy_seconds() const { return writer_ ? writer_->copy_seconds() : 0; }

void save_snapshot(const std::filesystem::path& dir, const SnapshotContents& contents) {
  contents.check();
  const SnapshotLock lock(dir, *contents.comm(), SnapshotLock::Entry::kCollective);
  SnapshotWriter writer(contents, {.snapshot_dir = dir.string(), .keep = 0}, lock);
  lock.check_room(*contents.comm(), writer);
  writer.save();
  writer.wait();
}

void save_snapshot(const std::filesystem::path& dir, DistributedOptimizer& optimizer,
                   const DataPosition& data) {
  save_snapshot(dir, SnapshotContents::of(optimizer, data));
}

}  // namespace fleet
