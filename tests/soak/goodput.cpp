// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <cmath>
#include <random>
#include <set>
#include <thread>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/ranks/rank_history.h"
#include "tests/ranks/ranks.h"
#include "tests/soak/soak.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

constexpr double kFaultEvery_s = 60;
constexpr double kMaxGoodput = 1.05;  // more is an error of the measurement

Words goodput_job(const SoakOptions& options, const std::filesystem::path& dir) {
  Words words = {format("--nproc_per_node={}", options.ranks), "--max_restarts=1000"};
  if (options.elastic) words.push_back("--elastic");
  words.insert(words.end(), {beside("test_elastic_program"), "--epochs=1000000", "--step_ms=50",
                             "--save_every=20", "--snapshot_dir=" + dir.string()});
  return words;
}

/// Averages that the ranks have made from `begin` to `end`, each number once per rank: an update
/// that is repeated after a restart is of no use the second time.
int64_t useful_updates(const Launched& job, int ranks, double begin, double end) {
  int64_t count = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    std::set<int64_t> before, numbers;
    for (const auto& update : RankHistory::in(job.log(rank)).updates) {
      if (update.at < begin) before.insert(update.number);
      if (update.at >= begin && update.at < end && !before.contains(update.number))
        numbers.insert(update.number);
    }
    count += std::ssize(numbers);
  }
  return count;
}

bool all_train(const Launched& job, int ranks) {
  return eventually(
      [&] {
        for (int rank = 0; rank < ranks; ++rank) {
          if (!RankHistory::in(job.log(rank)).is_training()) return false;
        }
        return true;
      },
      120s);
}

void sleep_until(double time) {
  std::this_thread::sleep_for(std::chrono::duration<double>(time - steady_seconds()));
}

}  // namespace

// Two of the same job side by side, one of which is disturbed: whatever else the machine does, it
// does to both. A rate measured before the faults is that of another minute.
Row soak_goodput(const SoakOptions& options) {
  const TemporaryFolder folder;
  const auto variables = with({"OMP_NUM_THREADS=1", "FLEET_TIMEOUT_S=5"});
  Launched job(goodput_job(options, folder.path() / "snapshots"), variables);
  Launched twin(goodput_job(options, folder.path() / "twin_snapshots"), variables);
  for (const auto* each : {&job, &twin}) {
    if (!all_train(*each, options.ranks))
      throw Error("soak", "the job does not train", each->output());
  }
  const double begin = steady_seconds(), end = begin + 60 * options.minutes;
  std::mt19937_64 random(static_cast<uint64_t>(options.seed));
  auto problems = Row::array();
  int faults = 0;
  // Half a period before the first, so that the last has the other half to be mended in.
  for (double at = begin + kFaultEvery_s / 2; at < end; at += kFaultEvery_s) {
    sleep_until(at);
    const auto victim = static_cast<int>(random() % static_cast<uint64_t>(options.ranks));
    if (is_gone(job.pid()) || !all_train(job, options.ranks)) {
      problems.push_back("not all ranks train a minute after the last fault\n" + job.output());
      break;
    }
    ::kill(RankHistory::in(job.log(victim)).pids.back(), SIGKILL);
    ++faults;
  }
  sleep_until(end);
  const auto useful = useful_updates(job, options.ranks, begin, end);
  const auto expected = useful_updates(twin, options.ranks, begin, end);
  for (auto* each : {&job, &twin}) {
    each->send(SIGTERM);
    if (const int code = each->wait(60s); code != 143)
      problems.push_back(format("ended with {}\n{}", code, each->output()));
  }
  const double goodput = static_cast<double>(useful) / static_cast<double>(expected);
  if (goodput > kMaxGoodput)
    problems.push_back(format("{:.3f} of what the job beside it made, without faults", goodput));
  return {{"setup", format("{} ranks, {}", options.ranks, options.elastic ? "elastic" : "restart")},
          {"tried", faults},
          {"minutes", options.minutes},
          {"undisturbed_averages", expected},
          {"useful_averages", useful},
          {"goodput", std::round(1000 * goodput) / 1000},
          {"problems", problems}};
}

}  // namespace fleet::launch
