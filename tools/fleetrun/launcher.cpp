#include "tools/fleetrun/launcher.h"

#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/process_setup.h"

#include "tools/fleetrun/screens.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kArea = "fleetrun";
constexpr auto kLookEvery = 50ms;
constexpr auto kCollect = 300ms;  // a crash takes its peers down within milliseconds
constexpr auto kHear = 2000ms;  // until then its peers may say what they saw, and end by themselves
constexpr auto kVerdictWait = 3s;     // for node 0's choice among several failures
constexpr auto kFarewellMargin = 5s;  // beyond the grace that every node gives its ranks
constexpr size_t kTailLines = 20;

}  // namespace

Launcher::Launcher(const Options& options, Program program, SignalInbox& inbox, Watchdog& watchdog)
    : options_(options),
      program_(std::move(program)),
      inbox_(inbox),
      watchdog_(watchdog),
      log_dir_(make_log_dir(options.log_dir).string()) {
  for (int rank = 0; rank < options_.local_ranks(); ++rank)
    logs_.emplace_back(options_.log_dir, rank);
}

int Launcher::run() {
  log::plain(configuration_block(options_));
  auto rendezvous = meet(options_, inbox_);
  cluster_ = std::move(rendezvous.cluster);
  max_restarts_ = rendezvous.max_restarts;
  announce();

  NodeLink link(rendezvous.store, cluster_);
  const auto patience = std::chrono::duration<double>(options_.grace_s) + kFarewellMargin;
  for (int attempt = 0;; ++attempt) {
    link.begin(attempt);
    const auto failure = run_attempt(link, attempt);
    if (failure && failure->restartable && attempt < max_restarts_) {
      log::warn(kArea, format("{}: restart {} of {}, its log is {}", failure->what, attempt + 1,
                              max_restarts_, failure->log));
      continue;
    }
    const auto failures = link.view().failures.size();
    link.leave(patience);
    if (!failure) return 0;
    if (!failure->stopped_by_user) {
      print_error(std::runtime_error(
          explain(*failure, cluster_.node_rank, failures > 0 ? failures - 1 : 0)));
    } else if (failure->node != cluster_.node_rank) {
      log::warn(kArea, failure->what);
    }
    return failure->exit_code;
  }
}

void Launcher::announce() const {
  log::plain("\n" + environment_table(shown_environment(environments(0).front())) + "\n");
  const int ranks = options_.local_ranks();
  const int first = cluster_.first_rank();
  const char* chosen = std::getenv("OMP_NUM_THREADS");
  const auto threads =
      chosen != nullptr ? format("OMP_NUM_THREADS={} as set", chosen)
                        : format("{} of {} cores each", threads_per_rank(ranks), available_cores());
  log::info(kArea, format("{} of {} here, {}; output in {}/workerlog.N",
                          ranks == 1 ? format("rank {}", first)
                                     : format("ranks {} to {}", first, first + ranks - 1),
                          cluster_.world_size(), threads, options_.log_dir));
}

std::vector<Environment> Launcher::environments(int attempt) const {
  std::vector<Environment> list;
  list.reserve(logs_.size());
  const Attempt about{attempt, max_restarts_, log_dir_};
  for (int rank = 0; rank < options_.local_ranks(); ++rank)
    list.push_back(worker_environment(cluster_, options_, about, rank));
  return list;
}

std::optional<Failure> Launcher::run_attempt(NodeLink& link, int attempt) {
  if (auto failure = gather(link)) return failure;
  for (auto& log : logs_) log.begin_attempt(attempt, max_restarts_);
  std::optional<Crew> started;
  try {
    started.emplace(program_, environments(attempt), logs_, watchdog_);
  } catch (const std::exception& error) {
    link.report({.node = cluster_.node_rank,
                 .what = format("node {} ({}) cannot start its ranks: {}", cluster_.node_rank,
                                cluster_.own().address, error.what()),
                 .restartable = false});
    link.leave(kFarewellMargin);
    throw;
  }
  Crew& crew = *started;
  const auto stop = supervise(link, crew, attempt);
  if (!stop) return std::nullopt;

  // Before the ranks are ended, which may take the whole grace: the other nodes wait for it.
  if (cluster_.node_rank == 0) link.decide(first_cause(stop->failures));
  crew.end(stop->signals, std::chrono::duration<double>(options_.grace_s), inbox_);
  return agree(link);
}

std::optional<Failure> Launcher::gather(NodeLink& link) {
  while (true) {
    const auto view = link.view();
    if (view.ready == static_cast<int>(cluster_.nodes.size())) return std::nullopt;
    if (!view.failures.empty()) return first_cause(view.failures);
    const auto signal = inbox_.next(kLookEvery);
    if (!signal || *signal == SIGCHLD) continue;
    const auto failure = stopped_by(*signal);
    link.report(failure);
    return failure;
  }
}

void Launcher::bring_back(Comebacks& comebacks, Crew& crew, int attempt) {
  for (const size_t rank : comebacks.due(crew)) {
    const int times = comebacks.times(rank);
    logs_[rank].begin_attempt(times, max_restarts_);
    crew.restart(rank, program_, environments(attempt)[rank], logs_[rank], watchdog_);
    crew.echo().fresh_line();
    log::info(kArea, format("rank {} is started again (pid {}), {} of {}",
                            cluster_.first_rank() + static_cast<int>(rank), crew.worker(rank).pid(),
                            times, max_restarts_));
  }
}

std::optional<Launcher::Stop> Launcher::supervise(NodeLink& link, Crew& crew, int attempt) {
  Comebacks comebacks(options_, max_restarts_);
  std::optional<Clock::time_point> failed_at;
  std::vector<Failure> causes;  // those of the first moments; later ones are consequences
  bool failed_here = false;
  bool done_here = false;
  while (true) {
    const auto signal = inbox_.next(kLookEvery);
    if (signal && *signal != SIGCHLD) {
      const auto stopped = stopped_by(*signal);
      link.report(stopped);
      crew.echo().fresh_line();
      log::info(kArea, format("{}: ending {} rank{}, SIGKILL after {} s or at once when it is sent "
                              "again",
                              signal_name(*signal), crew.size(), crew.size() == 1 ? "" : "s",
                              options_.grace_s));
      if (*signal == SIGINT) return Stop{{stopped}, {SIGINT, SIGTERM}};
      return Stop{{stopped}, {SIGTERM}};
    }
    for (const size_t rank : crew.new_failures()) {
      const auto failure = describe(crew, rank);
      if (!failed_here && comebacks.take(crew, rank, failure)) continue;
      if (!failed_here) {
        for (const auto& earlier : comebacks.recent()) link.report(earlier);
      }
      link.report(failure);
      failed_here = true;
    }
    if (!failed_here) bring_back(comebacks, crew, attempt);
    if (!failed_here && !done_here && crew.all_ended() && !comebacks.is_waiting(crew)) {
      crew.end({SIGTERM}, std::chrono::duration<double>(options_.grace_s), inbox_);
      link.report_done();
      done_here = true;
    }
    const auto view = link.view();
    if (view.done == static_cast<int>(cluster_.nodes.size())) return std::nullopt;
    if (!failed_at && (failed_here || !view.failures.empty())) failed_at = Clock::now();
    if (!failed_at) continue;
    if (causes.empty() && Clock::now() >= *failed_at + kCollect) causes = view.failures;
    const bool heard = crew.all_ended() || Clock::now() >= *failed_at + kHear;
    if (!causes.empty() && heard) return Stop{causes, {SIGTERM}};
  }
}

Failure Launcher::agree(NodeLink& link) const {
  const auto deadline = Clock::now() + kVerdictWait;
  while (true) {
    const auto view = link.view();
    if (view.verdict) return *view.verdict;
    if (Clock::now() >= deadline && !view.failures.empty()) return first_cause(view.failures);
    inbox_.next(kLookEvery);
  }
}

Failure Launcher::describe(Crew& crew, size_t local_rank) const {
  if (local_rank == 0) crew.echo().settle();
  const auto& worker = crew.worker(local_rank);
  const auto ending = *worker.ending_seen();
  const auto& log = logs_[local_rank];
  const auto place = cluster_.nodes.size() == 1
                         ? ""
                         : format(", node {} at {}", cluster_.node_rank, cluster_.own().address);
  auto what = format("rank {} (pid {}{}) {} after {:.1f} s",
                     cluster_.first_rank() + static_cast<int>(local_rank), worker.pid(), place,
                     ending.text(), worker.lifetime().count());
  if (ending.signal == SIGKILL) what += "; the kernel does that when memory runs out, see dmesg";
  return {.node = cluster_.node_rank,
          .what = std::move(what),
          .exit_code = ending.exit_code(),
          .crashed = ending.crashed(),
          .log = log.path(),
          .tail = log.tail(kTailLines),
          .echoed = local_rank == 0};
}

Failure Launcher::stopped_by(int signal) const {
  return {.node = cluster_.node_rank,
          .what = format("stopped by {} on node {} ({})", signal_name(signal), cluster_.node_rank,
                         cluster_.own().address),
          .exit_code = 128 + signal,
          .restartable = false,
          .stopped_by_user = true};
}

}  // namespace fleet::launch
