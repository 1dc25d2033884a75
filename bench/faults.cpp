// SPDX-License-Identifier: Apache-2.0
// What a fault costs: from the moment that a rank is lost to the next update, beside the start of
// the program, which is part of it.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

#include "bench/benches.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/launched.h"

namespace fleet::bench {
namespace {

using Clock = std::chrono::steady_clock;
using launch::Launched;
using Words = std::vector<std::string>;

constexpr int kRounds = 3;
constexpr int kSaveEvery = 5;
constexpr int kPeerTimeout_s = 3;
constexpr double kAim_s = 10;  // beside the start of the program
constexpr auto kPatience = std::chrono::minutes(3);
constexpr auto kRestart = "fleetrun: restart 1 of 1";

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// BERT of four layers on two ranks, which says every update.
Words training(const std::filesystem::path& snapshots) {
  return {"--nproc_per_node=2",
          "--max_restarts=1",
          format("--peer_timeout_s={}", kPeerTimeout_s),
          launch::beside("bert"),
          "--seq=32",
          "--max_updates=1000",
          "--snapshot_dir=" + snapshots.string(),
          format("--save_every={}", kSaveEvery)};
}

// The number behind the last `words` in `log`, if there are any.
std::optional<int64_t> last_number(const std::string& log, const std::string& words) {
  const auto at = log.rfind(words);
  if (at == log.npos) return {};
  return std::atoll(log.c_str() + at + words.size());
}

// How many updates the last line of one has counted.
int64_t last_update(const std::string& log) {
  const auto step = last_number(log, "worker_index: 0, step");
  return step ? *step + 1 : 0;
}

void wait_until(const Launched& run, const std::string& what,
                const std::function<bool(const std::string& log)>& condition) {
  if (!launch::eventually([&] { return condition(run.log(0)); }, kPatience)) {
    throw Error("bench", format("{} did not come:\n{}", what, run.output()));
  }
}

void wait_for_update(const Launched& run, int64_t update) {
  wait_until(run, format("update {}", update),
             [&](const std::string& log) { return last_update(log) >= update; });
}

/// The process of a rank: the child of fleetrun that has this number in its environment.
pid_t pid_of_rank(const Launched& run, int rank) {
  const auto wanted = format("RANK={}", rank);
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto stat = launch::contents(entry.path() / "stat");
    const auto close = stat.rfind(')');
    pid_t parent = 0;
    if (close == stat.npos || std::sscanf(stat.c_str() + close + 1, " %*c %d", &parent) != 1 ||
        parent != run.pid()) {
      continue;
    }
    const auto environment = '\0' + launch::contents(entry.path() / "environ");
    if (environment.find('\0' + wanted + '\0') == environment.npos) continue;
    return std::stoi(entry.path().filename().string());
  }
  throw Error("bench", format("fleetrun has no {}", wanted));
}

struct Outcome {
  double start_s = 0;     // of fleetrun, to the first update
  double recovery_s = 0;  // from the fault to the next update
  double lost = 0;        // updates that had to be repeated
};

/// A rank that gets `signal` between two snapshots, as late as can be.
Outcome lose_rank(int rank, int signal) {
  const TemporaryFolder dir;
  Outcome outcome;
  const auto begin = Clock::now();
  const Launched run(training(dir.path()));
  wait_for_update(run, 1);
  outcome.start_s = seconds_since(begin);
  wait_for_update(run, 3 * kSaveEvery - 1);
  const pid_t pid = pid_of_rank(run, rank);
  const auto fault = Clock::now();
  ::kill(pid, signal);
  std::string before, since;
  wait_until(run, "an update after the restart", [&](const std::string& log) {
    const auto restart = log.find(kRestart);
    if (restart == log.npos) return false;
    before = log.substr(0, restart);
    since = log.substr(restart);
    return last_update(since) > 0;
  });
  outcome.recovery_s = seconds_since(fault);
  const auto resumed = last_number(since, "resumes after update ").value_or(0);
  outcome.lost = static_cast<double>(last_update(before) - resumed);
  return outcome;
}

/// From SIGTERM to the end of fleetrun, with a snapshot on the disk.
double stop_in_order() {
  const TemporaryFolder dir;
  Launched run(training(dir.path()));
  wait_for_update(run, kSaveEvery + 1);
  const auto begin = Clock::now();
  run.send(SIGTERM);
  if (run.wait(kPatience) != 143) throw Error("bench", "SIGTERM did not end it:\n" + run.output());
  return seconds_since(begin);
}

struct Measured {
  Timing start, recovery, lost;
};

Measured measure(int rank, int signal) {
  Measured all;
  for (int round = 0; round < kRounds; ++round) {
    const auto outcome = lose_rank(rank, signal);
    all.start.seconds.push_back(outcome.start_s);
    all.recovery.seconds.push_back(outcome.recovery_s);
    all.lost.seconds.push_back(outcome.lost);
    log::plain(
        format("signal {} to rank {}: {:.2f} s to the next update, {:.2f} s of program "
               "start, {} updates lost",
               signal, rank, outcome.recovery_s, outcome.start_s, outcome.lost));
  }
  return all;
}

std::vector<Row> rows_of(const std::string& name, const Measured& measured, double noticed_s) {
  const double start = measured.start.median(), recovery = measured.recovery.median();
  const double beside = std::max(0.0, recovery - start);
  return {{name + ": to the next update", recovery, "s", "fleetrun's start to the first", start,
           start / recovery, measured.recovery.spread()},
          {name + ": beside program start", beside, "s", "aim", kAim_s + noticed_s,
           (kAim_s + noticed_s) / std::max(beside, 1e-3), ""},
          {name + ": updates repeated", measured.lost.median(), "updates", "save_every", kSaveEvery,
           kSaveEvery / std::max(measured.lost.median(), 1.0), ""}};
}

}  // namespace

std::vector<Row> bench_faults() {
  std::vector<Row> rows;
  const auto add = [&](std::vector<Row> more) {
    rows.insert(rows.end(), more.begin(), more.end());
  };
  add(rows_of("kill -9 of rank 1, restart", measure(1, SIGKILL), 0));
  add(rows_of("kill -9 of rank 0, restart", measure(0, SIGKILL), 0));
  add(rows_of(format("SIGSTOP of rank 1, limit {} s", kPeerTimeout_s), measure(1, SIGSTOP),
              kPeerTimeout_s));
  Timing stop;
  for (int round = 0; round < kRounds; ++round) stop.seconds.push_back(stop_in_order());
  rows.push_back({"SIGTERM to the end, saved", stop.median(), "s", "what schedulers often give", 30,
                  30 / stop.median(), ""});
  return rows;
}

}  // namespace fleet::bench
