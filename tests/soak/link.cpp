// SPDX-License-Identifier: Apache-2.0
#include <memory>
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
#include "tests/support/two_hosts.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

const Words kArguments = {"--epochs=24", "--update_ms=20"};
constexpr int kDropsPerJob = 4;

/// Two nodes of one rank each. A node that the cut has ended is started again by its command.
class LinkedJob {
 public:
  explicit LinkedJob(const TwoHosts& hosts) : hosts_(hosts) {
    for (int node = 0; node < 2; ++node) start(node);
  }

  /// Starts what has ended, once the link is there again; false when all is over.
  bool tend() {
    bool is_over = true;
    for (int node = 0; node < 2; ++node) {
      if (codes_[node] == 0) continue;
      if (!is_gone(nodes_[node]->pid())) {
        is_over = false;
        continue;
      }
      codes_[node] = nodes_[node]->wait(5s);
      updates_.add(node == 0 ? nodes_[0]->log(0) : "");
      if (codes_[node] == 0) continue;
      is_over = false;
      if (++starts_ > 40)
        throw Error("soak", "not finished after 40 starts", nodes_[node]->output());
      start(node);
    }
    return !is_over;
  }

  int starts() const { return starts_; }
  const MadeUpdates& updates() const { return updates_; }
  std::string digest() const { return after(nodes_[0]->log(0), "digest"); }

 private:
  void start(int node) {
    auto before = hosts_.on(node);
    // In a process namespace of its own: ranks of one machine sum in shared memory, link or not.
    for (const char* word :
         {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "env", "OMP_NUM_THREADS=1"})
      before.emplace_back(word);
    codes_[node] = -1;
    nodes_[node] = std::make_unique<Launched>(
        recovery_job(
            1, folder_.path(), kArguments,
            {"--nnodes=2", format("--node_rank={}", node), "--master=10.77.0.1:29513",
             "--max_restarts=1000", "--peer_timeout_s=2", "--grace_s=1", "--join_timeout_s=60"}),
        before);
  }

  const TwoHosts& hosts_;
  const TemporaryFolder folder_;
  std::unique_ptr<Launched> nodes_[2];
  int codes_[2] = {-1, -1};
  int starts_ = 0;
  MadeUpdates updates_;
};

}  // namespace

Row soak_link(const SoakOptions& options) {
  const TwoHosts hosts;
  if (!hosts.refused().empty()) throw Error("soak", hosts.refused(), "run as root");
  const auto expected = expected_digest(2, kArguments);
  SoakTally tally(options);
  std::mt19937_64 random(static_cast<uint64_t>(options.seed));
  while (tally.wants_more()) {
    LinkedJob job(hosts);
    for (int drops = 0; drops < kDropsPerJob && tally.tried < options.count;
         ++drops, ++tally.tried) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500 + random() % 3000));
      if (!job.tend()) break;
      hosts.unplug(static_cast<int>(random() % 2));
      std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 4000));
      for (int host = 0; host < 2; ++host) hosts.plug_in(host);
    }
    const bool is_over = eventually([&] { return !job.tend(); }, 240s);
    std::string problem = is_over ? "" : "not finished in 240 s";
    if (is_over && job.digest() != expected) problem = "digest " + job.digest();
    tally.add_job(job.updates(), job.starts(), problem);
  }
  return tally.row("2 nodes of a rank each, restart");
}

}  // namespace fleet::launch
