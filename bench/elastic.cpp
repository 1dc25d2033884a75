// SPDX-License-Identifier: Apache-2.0
// An elastic job whose ranks are killed: how long until the others continue, and until it is
// complete again.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "bench/benches.h"
#include "tests/ranks/rank_history.h"
#include "tests/support/launched.h"

namespace fleet::bench {
namespace {

using namespace std::chrono_literals;
using launch::RankHistory;
using launch::steady_seconds;

constexpr int kRounds = 6;  // by turns rank 1 and rank 0
constexpr const char* kProgram = "test_elastic_program";

void wait_until(const std::function<bool()>& condition, const launch::Launched& job) {
  if (launch::eventually(condition, 120s)) return;
  throw Error("bench", "the job did not continue:\n" + job.output());
}

// Between two averages of an undisturbed job.
Timing intervals(const RankHistory& history, double until) {
  Timing timing;
  for (size_t i = 1; i < history.updates.size() && history.updates[i].at < until; ++i) {
    const bool same_epoch = history.updates[i].epoch == history.updates[i - 1].epoch;
    if (same_epoch) timing.seconds.push_back(history.updates[i].at - history.updates[i - 1].at);
  }
  return timing;
}

}  // namespace

std::vector<Row> bench_elastic() {
  if (!std::filesystem::exists(launch::beside(kProgram))) {
    throw Error("bench", format("{} is not beside fleet-bench", kProgram), "build it first");
  }
  const double begin = steady_seconds();
  launch::Launched job({"--nproc_per_node=2", "--elastic", "--max_restarts=1000",
                        launch::beside(kProgram), "--epochs=100000"},
                       {"env", "OMP_NUM_THREADS=1"});
  const auto history = [&](int rank) { return RankHistory::in(job.log(rank)); };
  wait_until([&] { return history(0).updates.size() > 30; }, job);
  const double first = history(0).updates.front().at - begin;
  const auto usual = intervals(history(0), steady_seconds());

  Timing pause, absence;
  for (int round = 0; round < kRounds; ++round) {
    const int victim = 1 - round % 2, survivor = 1 - victim;
    const auto processes = history(victim).pids.size();
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + 37 * round));
    const double killed = steady_seconds();
    ::kill(history(victim).pids.back(), SIGKILL);
    wait_until([&] { return history(survivor).next_update_after(killed + 0.001).has_value(); },
               job);
    pause.seconds.push_back(*history(survivor).next_update_after(killed + 0.001) - killed);
    wait_until(
        [&] { return history(victim).pids.size() > processes && history(victim).is_training(); },
        job);
    absence.seconds.push_back(*history(victim).next_update_after(killed + 0.001) - killed);
  }
  job.send(SIGTERM);
  job.wait();
  return {{"kill -9 of one of two ranks: to the other's next average", pause.median() * 1e3, "ms",
           "between two averages as a rule", usual.median() * 1e3, usual.median() / pause.median(),
           pause.spread()},
          {"kill -9 of one of two ranks: to its first average with the other again",
           absence.median() * 1e3, "ms", "the job's start to its first average", first * 1e3,
           first / absence.median(), absence.spread()}};
}

}  // namespace fleet::bench
