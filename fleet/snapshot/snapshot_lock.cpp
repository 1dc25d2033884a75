// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_lock.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include <ATen/ops/full.h>

#include "fleet/io/output_check.h"
#include "fleet/snapshot/snapshot_agreement.h"
#include "fleet/snapshot/snapshot_folder.h"
#include "fleet/snapshot/snapshot_writer.h"

namespace fleet {
namespace {

OutputPlace place_of(const std::filesystem::path& dir) {
  return {dir, "--snapshot_dir", "snapshot"};
}

// Headers, records, and what files take up beside their bytes.
constexpr int64_t kOverhead = 1 << 20;

// Other ranks wait for the one that watches a heartbeat: it has to end before their calls time out.
FolderLock::Options lock_options(const comm::Communicator& comm) {
  FolderLock::Options options{.has_members = comm.elastic() != nullptr};
  options.silence = std::clamp(std::chrono::milliseconds(comm.options().timeout / 2),
                               5 * options.heartbeat, options.silence);
  return options;
}

// A positive number, so that ranks can be told of it.
int64_t new_job() {
  std::random_device device;
  return static_cast<int64_t>((uint64_t{device()} << 31) ^ device()) | 1;
}

}  // namespace

SnapshotLock::SnapshotLock(std::filesystem::path dir, comm::Communicator& comm, Entry entry)
    : dir_(std::move(dir)) {
  auto options = lock_options(comm);
  const auto join = [&](const std::string& job) {
    options.job = job;
    lock_ = std::make_unique<FolderLock>(dir_, FolderLock::Role::kMember, options);
  };
  if (entry == Entry::kJoining) {
    check_output_folder(place_of(dir_));
    join(FolderLock::job_of(dir_));
    return;
  }
  const auto job = run_on_all_ranks(comm, "the lock of the snapshots", [&]() -> int64_t {
    check_output_folder(place_of(dir_));
    if (comm.index() != 0) return 0;
    const auto own = new_job();
    options.job = std::to_string(own);
    lock_ = std::make_unique<FolderLock>(dir_, FolderLock::Role::kHolder, options);
    finish_interrupted(dir_);
    return own;
  });
  run_on_all_ranks(comm, "the folder of the snapshots", [&]() -> int64_t {
    if (comm.index() == 0) return 0;
    if (comm.elastic()) {
      join(std::to_string(job));
    } else {
      FolderLock::check_job(dir_, std::to_string(job));
    }
    return 0;
  });
}

SnapshotLock::~SnapshotLock() { output_written(place_of(dir_).flag); }

void SnapshotLock::check_room(comm::Communicator& comm, const SnapshotWriter& writer) const {
  const auto all = torch::full({1}, writer.bytes(), torch::kLong);
  comm.all_reduce(all, comm::ReduceOp::kSum, "the bytes of a snapshot");
  run_on_all_ranks(comm, "the room for a snapshot", [&]() -> int64_t {
    check_file_size_limit(place_of(dir_), writer.largest_file(), "the largest file of a snapshot");
    if (comm.index() == 0) {
      fleet::check_room(place_of(dir_), all.item<int64_t>() + kOverhead, "a snapshot");
    }
    return 0;
  });
}

}  // namespace fleet
