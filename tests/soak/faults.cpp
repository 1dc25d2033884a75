// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <fstream>
#include <map>

#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/ranks/fault_injector.h"
#include "tests/ranks/rank_history.h"
#include "tests/ranks/recovery.h"
#include "tests/soak/job_end.h"
#include "tests/soak/made_updates.h"
#include "tests/soak/soak.h"
#include "tests/soak/soak_tally.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

constexpr int kFaultsPerJob = 6;
constexpr int64_t kEpochsAfterwards = 8;
constexpr int kMaxStarts = 40;     // of one job, by hand
constexpr double kLearned = 0.05;  // the elastic program begins at 0.7

Words recovery_arguments(int ranks) {
  Words words = {"--epochs=24", "--update_ms=20"};
  if (ranks > 2) words.insert(words.end(), {"--localsgd", "--localsgd_configs.k_steps=4"});
  return words;
}

/// One job, disturbed until it has had its faults, and what came of it.
class DisturbedJob {
 public:
  DisturbedJob(const SoakOptions& options, uint64_t seed, const std::string& expected)
      : options_(options), seed_(seed), expected_(expected) {}

  void run(int faults) {
    for (int start = 0; start < kMaxStarts; ++start) {
      Launched job(words(), with({"OMP_NUM_THREADS=1", "FLEET_TIMEOUT_S=2"}));
      FaultInjector fault_injector(
          job, options_.ranks, seed_ * 1000 + static_cast<uint64_t>(start),
          {.launcher = true, .term = true, .wake_rank_after = options_.elastic ? 3s : 0s});
      bool was_ended = false;
      while (!was_ended && made_ < faults && fault_injector.inject()) {
        ++made_;
        ++kinds_[fault_injector.last().kind()];
        was_ended =
            fault_injector.last().ends_job() && !continues_after(fault_injector.last(), job);
      }
      if (made_ == faults && !was_ended) {  // else in the next start
        if (options_.elastic) learn_again(job);
        std::ofstream(end_file()) << "now";
      }
      const int code = wait_while_it_prints(job, options_.ranks);
      updates_.add(job.log(0));
      ++starts_;
      history_ += fault_injector.history();
      if (code == -1) return fail("the job prints nothing and does not end", job);
      if (!leaves_nothing_behind(job)) return;
      if (code == 0) return check(job);
      // 137: fleetrun was killed; 143: all were asked to end.
      if (!was_ended || (code != 137 && code != 143)) {
        return fail(format("the job ended with {}", code), job);
      }
    }
    problem_ = format("not finished after {} starts", kMaxStarts);
  }

  int made() const { return made_; }
  int starts() const { return starts_; }
  const std::map<std::string, int>& kinds() const { return kinds_; }
  const MadeUpdates& updates() const { return updates_; }
  /// Empty: it ended as it should.
  const std::string& problem() const { return problem_; }

 private:
  std::filesystem::path end_file() const { return folder_.path() / "end"; }

  Words words() const {
    const auto snapshots = folder_.path() / "snapshots";
    if (!options_.elastic) {
      return recovery_job(options_.ranks, snapshots, recovery_arguments(options_.ranks),
                          {"--max_restarts=1000", "--peer_timeout_s=2"});
    }
    return {format("--nproc_per_node={}", options_.ranks),
            "--elastic",
            "--max_restarts=1000",
            beside("test_elastic_program"),
            "--epochs=100000",
            "--until=" + end_file().string(),
            "--save_every=10",
            "--snapshot_dir=" + snapshots.string()};
  }

  // A rank that gets SIGTERM before it has made its Snapshots ends by it, as by any other fault.
  static bool continues_after(const Fault& fault, const Launched& job) {
    if (fault.rank == Fault::kLauncher) return false;
    const auto ended = format("(pid {}) was ended by signal {}", fault.pid, SIGTERM);
    const auto has_ended = [&] { return job.output().find(ended) != std::string::npos; };
    eventually([&] { return is_gone(job.pid()) || has_ended(); }, 180s);
    return !is_gone(job.pid()) && has_ended();
  }

  // Some epochs with those who are there, after the last fault.
  static void learn_again(const Launched& job) {
    const auto epoch = [&] {
      const auto told = RankHistory::in(job.log(0));
      return told.updates.empty() ? int64_t{0} : told.updates.back().epoch;
    };
    const auto now = epoch();
    eventually([&] { return is_gone(job.pid()) || epoch() > now + kEpochsAfterwards; }, 60s);
  }

  // Whatever happened to fleetrun, its ranks do not continue without it.
  bool leaves_nothing_behind(const Launched& job) {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      const auto pid = newest_pid(job.log(rank));
      if (pid > 0 && !eventually([&] { return is_gone(pid); }, 30s)) {
        ::kill(pid, SIGKILL);
        fail(format("rank {} (pid {}) was left behind", rank, pid), job);
        return false;
      }
    }
    return true;
  }

  void check(const Launched& job) {
    if (!options_.elastic) {
      const auto digest = after(job.log(0), "digest");
      if (digest != expected_) fail(format("digest {} and not {}", digest, expected_), job);
      return;
    }
    const auto first = RankHistory::in(job.log(0));
    if (first.loss < 0 || first.loss >= kLearned) fail(format("loss {}", first.loss), job);
    for (int rank = 1; rank < options_.ranks; ++rank) {
      if (RankHistory::in(job.log(rank)).digest != first.digest)
        fail(format("rank {} has other digits than rank 0", rank), job);
    }
  }

  void fail(const std::string& what, const Launched& job) {
    problem_ = format("job {}: {}\n{}{}", seed_, what, history_, job.output());
  }

  const SoakOptions& options_;
  const uint64_t seed_;
  const std::string expected_;
  const TemporaryFolder folder_;
  int made_ = 0, starts_ = 0;
  std::map<std::string, int> kinds_;
  MadeUpdates updates_;
  std::string history_, problem_;
};

}  // namespace

Row soak_faults(const SoakOptions& options) {
  const auto expected = options.elastic
                            ? std::string()
                            : expected_digest(options.ranks, recovery_arguments(options.ranks));
  SoakTally tally(options);
  while (tally.wants_more()) {
    DisturbedJob job(options, static_cast<uint64_t>(options.seed) * 1000 + tally.jobs(), expected);
    job.run(std::min(kFaultsPerJob, options.count - tally.tried));
    tally.tried += job.made();
    for (const auto& [kind, count] : job.kinds()) tally.kinds[kind] += count;
    tally.add_job(job.updates(), job.starts() - 1, job.problem());
  }
  return tally.row(format("{} ranks, {}", options.ranks, options.elastic ? "elastic" : "restart"));
}

}  // namespace fleet::launch
