// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/mount.h>

#include <fstream>
#include <random>
#include <thread>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/ranks/recovery.h"
#include "tests/soak/job_end.h"
#include "tests/soak/made_updates.h"
#include "tests/soak/soak.h"
#include "tests/soak/soak_tally.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

const Words kArguments = {"--epochs=24", "--update_ms=20"};

/// A disk of 2 MB that only this process and its children see.
class SmallDisk {
 public:
  SmallDisk() {
    const bool is_private = ::unshare(CLONE_NEWNS) == 0 &&
                            ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    if (!is_private || ::mount("tmpfs", path().c_str(), "tmpfs", 0, "size=2m") != 0)
      throw Error("soak", "a disk of its own needs a mount namespace, and so root", "run as root");
  }
  ~SmallDisk() { ::umount2(path().c_str(), MNT_DETACH); }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  std::filesystem::path path() const { return folder_.path(); }
  void fill() const {
    std::ofstream file(path() / "filler", std::ios::binary);
    const std::string block(4096, 'x');
    while (file.write(block.data(), std::ssize(block)).flush()) {
    }
  }
  void heal() const { std::filesystem::remove(path() / "filler"); }

 private:
  const TemporaryFolder folder_;
};

}  // namespace

Row soak_disk(const SoakOptions& options) {
  const auto expected = expected_digest(options.ranks, kArguments);
  SoakTally tally(options);
  std::mt19937_64 random(static_cast<uint64_t>(options.seed));
  while (tally.wants_more()) {
    const SmallDisk disk;
    MadeUpdates updates;
    std::string problem = "not finished";
    int starts = 0;
    for (; starts < 40 && problem == "not finished"; ++starts) {
      Launched job(recovery_job(options.ranks, disk.path() / "snapshots", kArguments,
                                {"--max_restarts=1000", "--peer_timeout_s=2"}),
                   with({"OMP_NUM_THREADS=1"}));
      // A disk that is full at the first start is a wrong --snapshot_dir, and not a fault.
      eventually([&] { return is_gone(job.pid()) || !after(job.log(0), "step").empty(); }, 180s);
      for (int fills = 0; fills < 4 && tally.tried < options.count && !is_gone(job.pid());
           ++fills) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200 + random() % 2000));
        if (is_gone(job.pid())) break;
        disk.fill();
        std::this_thread::sleep_for(std::chrono::milliseconds(200 + random() % 2500));
        disk.heal();
        ++tally.tried;
      }
      const int code = wait_while_it_prints(job, options.ranks);
      updates.add(job.log(0));
      const auto digest = after(job.log(0), "digest");
      if (code == 0) problem = digest == expected ? "" : format("digest {}", digest);
      if (code != 0 && code != 1) problem = format("ended with {}\n{}", code, job.output());
    }
    tally.add_job(updates, starts - 1, problem);
  }
  return tally.row(format("{} ranks, restart, snapshots on a disk of 2 MB", options.ranks));
}

}  // namespace fleet::launch
