// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/launcher.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/process/process_setup.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"

#include "tools/fleetrun/process/resource_limits.h"
#include "tools/fleetrun/rank_failures.h"
#include "tools/fleetrun/startup_banner.h"
#include "tools/fleetrun/stopped_ranks.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kArea = "fleetrun";
constexpr auto kPollInterval = 50ms;
constexpr auto kCollect = 300ms;       // the peers of a crashed rank fail within milliseconds
constexpr auto kPeerReports = 2000ms;  // in which its peers may report and end by themselves
constexpr auto kRootCauseWait = 3s;    // for node 0's choice
constexpr auto kLeaveMargin = 5s;      // beyond the grace that every node gives its ranks
constexpr auto kLogEvery = 10s;

}  // namespace

Launcher::Launcher(const Options& options, Program program, SignalInbox& inbox, Watchdog& watchdog)
    : options_(options),
      program_(std::move(program)),
      inbox_(inbox),
      watchdog_(watchdog),
      log_dir_(make_log_dir(options.log_dir).string()) {}

int Launcher::run() {
  log::plain(configuration_block(options_));
  auto rendezvous = join_rendezvous(options_, inbox_);
  cluster_ = std::move(rendezvous.cluster);
  max_restarts_ = rendezvous.max_restarts;
  announce();

  NodeCoordinator coordinator(rendezvous.store, cluster_);
  prepare(rendezvous.store, coordinator, rendezvous.attempt);
  for (int attempt = rendezvous.attempt;; ++attempt) {
    const auto begin = Clock::now();
    const auto failure = run_attempt(coordinator, attempt);
    if (failure && failure->restartable && attempt < max_restarts_) {
      log::warn(kArea, format("{}: restart {} of {}{}", failure->what, attempt + 1, max_restarts_,
                              failure->log.empty() ? "" : ", its log is " + failure->log));
      pause_.count(Clock::now() - begin);
      continue;
    }
    const auto failures = coordinator.state().failures.size();
    const bool may_save = failure && failure->stopped_by_user;
    coordinator.leave(
        std::chrono::duration<double>(may_save ? options_.save_grace_s : options_.grace_s) +
        kLeaveMargin);
    if (const auto text = logs_->missing())
      log::warn(kArea, format("logs are not complete: {}", *text));
    if (!failure) return 0;
    if (!failure->stopped_by_user) {
      print_error(std::runtime_error(
          explain(*failure, cluster_.node_rank, failures > 0 ? failures - 1 : 0)));
    } else if (failure->exit_code == Stopped::kExitCode) {
      log::info(kArea, format("{}; the same command resumes from the last snapshot, if the program "
                              "keeps any",
                              failure->what));
    } else if (failure->node != cluster_.node_rank) {
      log::warn(kArea, failure->what);
    }
    return failure->exit_code;
  }
}

void Launcher::prepare(comm::Store& store, NodeCoordinator& coordinator, int attempt) {
  try {
    const auto nodes = static_cast<int>(cluster_.nodes.size());
    const auto warnings = raise_limits({.local_ranks = options_.local_ranks(),
                                        .world_size = cluster_.world_size(),
                                        .nodes = nodes,
                                        .hosts_store = cluster_.node_rank == 0});
    for (const auto& warning : warnings) log::warn(kArea, warning);
    const auto job = store.prefixed(kArea).claim("job", random_token());
    log_lock_.emplace(log_dir_, cluster_.node_rank, job);
    logs_.emplace(options_.log_dir, cluster_.first_rank(), options_.local_ranks(),
                  WorkerLog::Options{.keep = options_.log_keep});
  } catch (const std::exception& error) {
    coordinator.begin(attempt);
    report_no_start(coordinator, error);
    throw;
  }
}

void Launcher::report_no_start(NodeCoordinator& coordinator, const std::exception& error) const {
  coordinator.report({.node = cluster_.node_rank,
                      .what = format("node {} ({}) cannot start its ranks: {}", cluster_.node_rank,
                                     cluster_.own().address, error.what()),
                      .exit_code = dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1,
                      .restartable = false});
  coordinator.leave(kLeaveMargin);
}

std::optional<int> Launcher::back_off() {
  const auto pause = pause_.next();
  if (pause == 0s || cluster_.node_rank != 0) return std::nullopt;
  log::info(kArea, format("{} attempts in a row failed within {} s: the next one begins in {} s",
                          pause_.in_a_row(), RestartBackoff::kAtOnce.count(), pause.count()));
  const auto end = Clock::now() + pause;
  while (Clock::now() < end) {
    const auto signal = inbox_.next(kPollInterval);
    if (signal && *signal != SIGCHLD) return signal;
  }
  return std::nullopt;
}

void Launcher::announce() const {
  log::plain("\n" + environment_table(shown_environment(environments(0).front())) + "\n");
  const int ranks = options_.local_ranks();
  const int first = cluster_.first_rank();
  const char* chosen = std::getenv("OMP_NUM_THREADS");
  const auto threads = chosen != nullptr ? format("OMP_NUM_THREADS={} as set", chosen)
                                         : shared_cores(ranks, available_cores());
  log::info(kArea, format("{} of {} here, {}; output in {}/workerlog.N",
                          ranks == 1 ? format("rank {}", first)
                                     : format("ranks {} to {}", first, first + ranks - 1),
                          cluster_.world_size(), threads, options_.log_dir));
}

std::vector<Environment> Launcher::environments(int attempt) const {
  std::vector<Environment> list;
  const Attempt about{attempt, max_restarts_, log_dir_};
  for (int rank = 0; rank < options_.local_ranks(); ++rank)
    list.push_back(worker_environment(cluster_, options_, about, rank));
  return list;
}

std::optional<Failure> Launcher::run_attempt(NodeCoordinator& coordinator, int attempt) {
  const auto asked = back_off();  // before this node counts as ready
  coordinator.begin(attempt);
  if (asked) return report_stop(coordinator, *asked);
  if (auto failure = gather(coordinator)) return failure;
  for (size_t rank = 0; rank < logs_->size(); ++rank)
    (*logs_)[rank].begin_attempt(attempt, max_restarts_);
  std::optional<WorkerGroup> started;
  try {
    started.emplace(program_, environments(attempt), *logs_, watchdog_);
  } catch (const std::exception& error) {
    report_no_start(coordinator, error);
    throw;
  }
  WorkerGroup& workers = *started;
  const auto stop = supervise(coordinator, workers, attempt);
  warn_of_full_disk(workers);
  if (!stop) return std::nullopt;

  // Before the ranks are ended, which may take the whole grace period: the other nodes wait for it.
  if (cluster_.node_rank == 0) coordinator.set_root_cause(first_cause(stop->failures));
  workers.end(stop->termination, inbox_);
  return agree(coordinator);
}

std::optional<Failure> Launcher::gather(NodeCoordinator& coordinator) {
  const auto begin = Clock::now();
  next_log_ = begin;
  while (true) {
    const auto state = coordinator.state();
    if (state.ready == static_cast<int>(cluster_.nodes.size())) return std::nullopt;
    if (!state.failures.empty()) return first_cause(state.failures);
    if (auto failure = wait_for_lost_node(state, Clock::now() - begin)) {
      coordinator.report(*failure);
      return failure;
    }
    const auto signal = inbox_.next(kPollInterval);
    if (signal && *signal != SIGCHLD) return report_stop(coordinator, *signal);
  }
}

Failure Launcher::report_stop(NodeCoordinator& coordinator, int signal) const {
  auto failure = stopped_by(signal);
  coordinator.report(failure);
  return failure;
}

std::optional<Failure> Launcher::wait_for_lost_node(const NodeCoordinator::State& state,
                                                    std::chrono::duration<double> waited) {
  if (state.lost_nodes.empty()) return std::nullopt;
  const auto who = format("node {} ({})", state.lost_nodes.front(),
                          cluster_.nodes[static_cast<size_t>(state.lost_nodes.front())].address);
  if (waited.count() >= options_.join_timeout_s)
    return Failure{.node = cluster_.node_rank,
                   .what = format("{} has not rejoined after {} s", who, options_.join_timeout_s),
                   .restartable = false};
  if (Clock::now() < next_log_) return std::nullopt;
  next_log_ = Clock::now() + kLogEvery;
  log::info(kArea, format("waiting for {} to rejoin, {:.0f} s of {} s: start fleetrun there with "
                          "the same flags",
                          who, waited.count(), options_.join_timeout_s));
  return std::nullopt;
}

void Launcher::restart_failed_ranks(RestartPolicy& restart_policy, WorkerGroup& workers,
                                    int attempt) {
  for (const size_t rank : restart_policy.due(workers)) {
    const int times = restart_policy.times(rank);
    (*logs_)[rank].begin_attempt(times, max_restarts_);
    workers.restart(rank, program_, environments(attempt)[rank]);
    workers.fresh_line();
    log::info(kArea, format("rank {} is restarted (pid {}), {} of {}",
                            cluster_.first_rank() + static_cast<int>(rank),
                            workers.worker(rank).pid(), times, max_restarts_));
  }
}

std::optional<Launcher::Stop> Launcher::supervise(NodeCoordinator& coordinator,
                                                  WorkerGroup& workers, int attempt) {
  RestartPolicy restart_policy(options_, max_restarts_);
  std::optional<Clock::time_point> failed_at;
  std::vector<Failure> causes;  // those of the first moments; later ones are consequences
  bool failed_here = false;
  bool done_here = false;
  const RankFailures failures(cluster_, *logs_, max_restarts_ > 0);
  StoppedRanks stopped_ranks(failures, peer_limit_s(options_));
  while (true) {
    const auto signal = inbox_.next(kPollInterval);
    if (signal && *signal != SIGCHLD) {
      const auto stopped = stopped_by(*signal);
      coordinator.report(stopped);
      auto stop = stop_after({stopped}, workers, *signal);
      workers.fresh_line();
      log::info(kArea, format("{}: ending {}, SIGKILL after {} s or at once when it is sent again; "
                              "sent by {}",
                              signal_name(*signal), plural(std::ssize(workers), "rank"),
                              stop.termination.grace.count(), inbox_.sender()));
      return stop;
    }
    for (const size_t rank : workers.new_failures()) {
      const auto failure = failures.describe(workers, rank);
      if (!failed_here && restart_policy.continue_without(workers, rank, failure)) continue;
      if (!failed_here) {
        for (const auto& earlier : restart_policy.recent()) coordinator.report(earlier);
      }
      coordinator.report(failure);
      failed_here = true;
    }
    if (!failed_here) restart_failed_ranks(restart_policy, workers, attempt);
    stopped_ranks.look(workers);
    warn_of_full_disk(workers);
    if (const auto rank = stopped_ranks.too_long(workers); rank && !failed_at) {
      if (options_.elastic) {
        workers.worker(*rank).send(SIGKILL);  // so that it is restarted like any other lost rank
      } else {
        coordinator.report(stopped_ranks.describe(workers, *rank));
        failed_here = true;
      }
    }
    if (!failed_here && !done_here && workers.all_ended() && !restart_policy.is_waiting(workers)) {
      workers.end({.signals = {SIGTERM}, .grace = std::chrono::duration<double>(options_.grace_s)},
                  inbox_);
      coordinator.report_done();
      done_here = true;
    }
    const auto state = coordinator.state();
    if (state.done == static_cast<int>(cluster_.nodes.size())) return std::nullopt;
    if (!failed_at && (failed_here || !state.failures.empty())) failed_at = Clock::now();
    if (!failed_at) continue;
    if (causes.empty() && Clock::now() >= *failed_at + kCollect) causes = state.failures;
    const bool heard = workers.none_runs() || Clock::now() >= *failed_at + kPeerReports;
    if (!causes.empty() && heard) return stop_after(causes, workers, 0);
  }
}

Launcher::Stop Launcher::stop_after(std::vector<Failure> failures, const WorkerGroup& workers,
                                    int asked_by) const {
  const auto& cause = first_cause(failures);
  // Ctrl-C ends ranks in the middle of an update, which the others cannot finish then.
  const bool in_order = cause.stopped_by_user && cause.exit_code != 128 + SIGINT;
  const bool may_save = in_order && workers.any_handles(SIGTERM);
  TerminationPolicy termination{
      .signals = asked_by == SIGINT ? std::vector{SIGINT, SIGTERM} : std::vector{SIGTERM},
      .grace = std::chrono::duration<double>(may_save ? options_.save_grace_s : options_.grace_s),
      .group_is_broken = !in_order,
      // The signal that another node received first may still arrive here.
      .asked_by = in_order && asked_by == 0 ? SIGUSR1 : asked_by};
  return {std::move(failures), std::move(termination)};
}

Failure Launcher::agree(NodeCoordinator& coordinator) const {
  const auto deadline = Clock::now() + kRootCauseWait;
  while (true) {
    const auto state = coordinator.state();
    if (state.root_cause) return *state.root_cause;
    if (Clock::now() >= deadline && !state.failures.empty()) return first_cause(state.failures);
    inbox_.next(kPollInterval);
  }
}

void Launcher::warn_of_full_disk(WorkerGroup& workers) {
  const auto text = logs_->new_write_error();
  if (!text) return;
  workers.fresh_line();
  log::warn(kArea, *text);
}

Failure Launcher::stopped_by(int signal) const {
  return {.node = cluster_.node_rank,
          .what = format("stopped by {} on node {} ({}), sent by {}", signal_name(signal),
                         cluster_.node_rank, cluster_.own().address, inbox_.sender()),
          .exit_code = exit_code_of(signal),
          .restartable = false,
          .stopped_by_user = true};
}

}  // namespace fleet::launch
