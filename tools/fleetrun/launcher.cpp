#include "tools/fleetrun/launcher.h"

#include <algorithm>
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
constexpr auto kIsStopped = "is stopped (SIGSTOP or a debugger)";
constexpr auto kSayEvery = 10s;
constexpr auto kLookForStopped = 1s;
constexpr auto kPeersFirst = 5s;       // they know more of what was going on
constexpr double kUsualLimit_s = 600;  // fleet::init's
constexpr auto kAtOnce = 3s;           // an attempt that fails within it may do so for ever
constexpr auto kLongestPause = 30s;

std::string plural(size_t count, const char* noun) {
  return format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

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
  for (int attempt = rendezvous.attempt;; ++attempt) {
    const auto begin = Clock::now();
    const auto failure = run_attempt(link, attempt);
    if (failure && failure->restartable && attempt < max_restarts_) {
      log::warn(kArea, format("{}: restart {} of {}{}", failure->what, attempt + 1, max_restarts_,
                              failure->log.empty() ? "" : ", its log is " + failure->log));
      count_quick_failures(Clock::now() - begin);
      continue;
    }
    const auto failures = link.view().failures.size();
    const bool may_save = failure && failure->stopped_by_user;
    link.leave(std::chrono::duration<double>(may_save ? options_.save_grace_s : options_.grace_s) +
               kFarewellMargin);
    if (!failure) return 0;
    if (!failure->stopped_by_user) {
      print_error(std::runtime_error(
          explain(*failure, cluster_.node_rank, failures > 0 ? failures - 1 : 0)));
    } else if (failure->exit_code == Stopped::kExitCode) {
      log::info(kArea, format("{}; the same command goes on from the last snapshot, if the program "
                              "keeps any",
                              failure->what));
    } else if (failure->node != cluster_.node_rank) {
      log::warn(kArea, failure->what);
    }
    return failure->exit_code;
  }
}

void Launcher::count_quick_failures(std::chrono::duration<double> attempt_lasted) {
  quick_failures_ = attempt_lasted < kAtOnce ? quick_failures_ + 1 : 0;
}

std::optional<int> Launcher::back_off() {
  if (quick_failures_ < 2 || cluster_.node_rank != 0) return std::nullopt;
  const auto pause =
      std::min<std::chrono::seconds>(1s * (1 << std::min(quick_failures_ - 2, 10)), kLongestPause);
  log::info(kArea, format("{} attempts in a row failed within {} s: the next one begins in {} s",
                          quick_failures_, kAtOnce.count(), pause.count()));
  const auto end = Clock::now() + pause;
  while (Clock::now() < end) {
    const auto signal = inbox_.next(kLookEvery);
    if (signal && *signal != SIGCHLD) return signal;
  }
  return std::nullopt;
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
  const auto asked = back_off();  // before the others see this node as ready
  link.begin(attempt);
  if (asked) return report_stop(link, *asked);
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
  crew.end(stop->farewell, inbox_);
  return agree(link);
}

std::optional<Failure> Launcher::gather(NodeLink& link) {
  const auto begin = Clock::now();
  next_word_ = begin;
  while (true) {
    const auto view = link.view();
    if (view.ready == static_cast<int>(cluster_.nodes.size())) return std::nullopt;
    if (!view.failures.empty()) return first_cause(view.failures);
    if (auto failure = wait_for_lost_node(view, Clock::now() - begin)) {
      link.report(*failure);
      return failure;
    }
    const auto signal = inbox_.next(kLookEvery);
    if (signal && *signal != SIGCHLD) return report_stop(link, *signal);
  }
}

Failure Launcher::report_stop(NodeLink& link, int signal) const {
  auto failure = stopped_by(signal);
  link.report(failure);
  return failure;
}

std::optional<Failure> Launcher::wait_for_lost_node(const NodeLink::View& view,
                                                    std::chrono::duration<double> waited) {
  if (view.vanished.empty()) return std::nullopt;
  const auto who = format("node {} ({})", view.vanished.front(),
                          cluster_.nodes[static_cast<size_t>(view.vanished.front())].address);
  if (waited.count() >= options_.join_timeout_s)
    return Failure{.node = cluster_.node_rank,
                   .what = format("{} has not come back after {} s", who, options_.join_timeout_s),
                   .restartable = false};
  if (Clock::now() < next_word_) return std::nullopt;
  next_word_ = Clock::now() + kSayEvery;
  log::info(kArea,
            format("waiting for {} to come back, {:.0f} s of {} s: start fleetrun there with "
                   "the same flags",
                   who, waited.count(), options_.join_timeout_s));
  return std::nullopt;
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
  stopped_since_.clear();
  while (true) {
    const auto signal = inbox_.next(kLookEvery);
    if (signal && *signal != SIGCHLD) {
      const auto stopped = stopped_by(*signal);
      link.report(stopped);
      auto stop = stop_after({stopped}, crew, *signal);
      crew.echo().fresh_line();
      log::info(kArea, format("{}: ending {}, SIGKILL after {} s or at once when it is sent again",
                              signal_name(*signal), plural(crew.size(), "rank"),
                              stop.farewell.grace.count()));
      return stop;
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
    look_for_stopped(crew);
    if (const auto rank = stopped_too_long(crew); rank && !failed_at) {
      if (options_.elastic) {
        crew.worker(*rank).send(SIGKILL);  // lost like any other, and so it can come back
      } else {
        link.report(describe_stopped(crew, *rank));
        failed_here = true;
      }
    }
    if (!failed_here && !done_here && crew.all_ended() && !comebacks.is_waiting(crew)) {
      crew.end({.signals = {SIGTERM}, .grace = std::chrono::duration<double>(options_.grace_s)},
               inbox_);
      link.report_done();
      done_here = true;
    }
    const auto view = link.view();
    if (view.done == static_cast<int>(cluster_.nodes.size())) return std::nullopt;
    if (!failed_at && (failed_here || !view.failures.empty())) failed_at = Clock::now();
    if (!failed_at) continue;
    if (causes.empty() && Clock::now() >= *failed_at + kCollect) causes = view.failures;
    const bool heard = crew.none_runs() || Clock::now() >= *failed_at + kHear;
    if (!causes.empty() && heard) return stop_after(causes, crew, 0);
  }
}

Launcher::Stop Launcher::stop_after(std::vector<Failure> failures, const Crew& crew,
                                    int asked_by) const {
  const auto& cause = first_cause(failures);
  // Ctrl-C ends ranks in the middle of an update, which the others cannot finish then.
  const bool in_order = cause.stopped_by_user && cause.exit_code != 128 + SIGINT;
  const bool may_save = in_order && crew.any_handles(SIGTERM);
  Farewell farewell{
      .signals = asked_by == SIGINT ? std::vector{SIGINT, SIGTERM} : std::vector{SIGTERM},
      .grace = std::chrono::duration<double>(may_save ? options_.save_grace_s : options_.grace_s),
      .group_is_broken = !in_order,
      // The signal that another node had first may still be on its way to this one.
      .asked_by = in_order && asked_by == 0 ? SIGUSR1 : asked_by};
  return {std::move(failures), std::move(farewell)};
}

void Launcher::look_for_stopped(Crew& crew) {
  if (Clock::now() < next_look_) return;
  next_look_ = Clock::now() + kLookForStopped;
  const auto stopped = crew.stopped();
  if (!stopped.empty() || !stopped_since_.empty()) crew.echo().fresh_line();
  std::map<size_t, Clock::time_point> now;
  for (const size_t rank : stopped) {
    const auto known = stopped_since_.find(rank);
    now[rank] = known != stopped_since_.end() ? known->second : Clock::now();
    if (known != stopped_since_.end()) continue;
    log::warn(kArea, format("{} {}; its peers wait for it for {} s (--peer_timeout_s)",
                            name_of(crew, rank), kIsStopped, peer_limit_s()));
  }
  for (const auto& [rank, since] : stopped_since_)
    if (!now.contains(rank) && !crew.worker(rank).ending_seen())
      log::info(kArea, format("{} runs again", name_of(crew, rank)));
  stopped_since_ = std::move(now);
}

std::optional<size_t> Launcher::stopped_too_long(const Crew& crew) const {
  const std::chrono::duration<double> limit(peer_limit_s());
  for (const auto& [rank, since] : stopped_since_) {
    const bool is_debugged =
        process_state(crew.worker(rank).pid()).letter == 't';  // somebody thinks
    if (!is_debugged && Clock::now() - since >= limit + kPeersFirst) return rank;
  }
  return std::nullopt;
}

Failure Launcher::describe_stopped(const Crew& crew, size_t local_rank) const {
  return {.node = cluster_.node_rank,
          .what = format("{} {}, for more than {} s", name_of(crew, local_rank), kIsStopped,
                         peer_limit_s()),
          .crashed = true,
          .log = logs_[local_rank].path()};
}

double Launcher::peer_limit_s() const {
  if (options_.peer_timeout_s > 0) return options_.peer_timeout_s;
  const char* text = std::getenv("FLEET_TIMEOUT_S");
  const double told = text != nullptr ? std::atof(text) : 0;
  return told > 0 ? told : kUsualLimit_s;
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
  auto what =
      format("{} {} after {:.1f} s", name_of(crew, local_rank),
             ending.stopped_in_order() ? "was asked to stop and left in order" : ending.text(),
             worker.lifetime().count());
  if (ending.signal == SIGKILL) what += "; the kernel does that when memory runs out, see dmesg";
  for (const size_t rank : crew.stopped())
    what += format("; {} {}", name_of(crew, rank), kIsStopped);
  if (!ending.mendable() && max_restarts_ > 0)
    what += "; that code means a wrong command line, which a restart does not mend";
  return {.node = cluster_.node_rank,
          .what = std::move(what),
          .exit_code = ending.exit_code(),
          .crashed = ending.crashed(),
          .restartable = ending.mendable() && !ending.stopped_in_order(),
          .stopped_by_user = ending.stopped_in_order(),
          .log = log.path(),
          .tail = log.tail(kTailLines),
          .echoed = local_rank == 0};
}

std::string Launcher::name_of(const Crew& crew, size_t local_rank) const {
  const auto place = cluster_.nodes.size() == 1
                         ? ""
                         : format(", node {} at {}", cluster_.node_rank, cluster_.own().address);
  return format("rank {} (pid {}{})", cluster_.first_rank() + static_cast<int>(local_rank),
                crew.worker(local_rank).pid(), place);
}

Failure Launcher::stopped_by(int signal) const {
  return {.node = cluster_.node_rank,
          .what = format("stopped by {} on node {} ({})", signal_name(signal), cluster_.node_rank,
                         cluster_.own().address),
          // A warning of the scheduler's ends like the signal that it passes on.
          .exit_code = 128 + (signal == SIGUSR1 ? SIGTERM : signal),
          .restartable = false,
          .stopped_by_user = true};
}

}  // namespace fleet::launch
