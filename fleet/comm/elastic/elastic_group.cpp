// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/elastic/elastic_group.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <utility>

#include "fleet/comm/elastic/membership.h"
#include "fleet/comm/rendezvous/thread_stop.h"
#include "fleet/comm/transport/elastic_connections.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/process/restart_needed.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kSlice{20};   // of a wait, between two checks for lost ranks
constexpr milliseconds kWatch{100};  // between two checks while idle

std::string names(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += format(" {}", rank);
  return text;
}

std::vector<int> without(const std::vector<int>& ranks, const std::vector<int>& others) {
  std::vector<int> rest;
  std::set_difference(ranks.begin(), ranks.end(), others.begin(), others.end(),
                      std::back_inserter(rest));
  return rest;
}

void copy(const std::vector<torch::Tensor>& from, const std::vector<torch::Tensor>& to) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

}  // namespace

struct ElasticGroup::Job {
  Collective call;
  std::function<void()> work;  // instead of a collective
  std::promise<void> done;
};

struct ElasticGroup::Shared : ThreadStop {
  // Used by the thread only.
  Store table;
  Liveness liveness;
  Membership membership;
  CommunicatorOptions options;
  int rank;
  int size;
  ElasticOptions elastic;
  MemberProgress progress;
  Invitation invitation;
  ElasticConnections connections;
  Collective* current = nullptr;
  std::vector<torch::Tensor> saved;  // input of the current call, or result of the last

  // Guarded by `mutex`.
  std::deque<Job> queue;
  std::exception_ptr failure;  // after it every call fails
  std::vector<int> present;
  std::vector<int> waits_for;
  bool joining = false;
  std::thread thread;

  Shared(const Store& store, int rank, int size, CommunicatorOptions options,
         ElasticOptions elastic)
      : table(store.prefixed("elastic")),
        liveness(store, rank, options.timeout),
        membership(store, liveness),
        options(options),
        rank(rank),
        size(size),
        elastic(std::move(elastic)),
        connections(std::move(options)) {}

  std::future<void> push(Job job) {
    auto future = job.done.get_future();
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(job));
    wake.notify_all();
    return future;
  }
  void inject_fault(ElasticOptions::FaultPoint moment) const {
    if (elastic.inject_fault) elastic.inject_fault(moment, progress.finished + 1);
  }
  void form_group();
  void run();
  void run_collective(Collective& call);
  class BarrierWait;
  bool enter_barrier(int64_t number, const Collective& call);
  void set_waits_for(std::vector<int> ranks) {
    const std::lock_guard lock(mutex);
    waits_for = std::move(ranks);
  }
  bool exchange(Collective& call);
  void exchange_tensors(const Collective& call);
  void finish(int64_t number, int64_t generation);
  void admit_requests(const Collective& call);
  void ask_to_join();
  void watch();
  bool has_lost_member() { return !liveness.lost_among(membership.current().slots()).empty(); }

  bool regroup();
  void regroup_or_throw(milliseconds waited);
  bool connect(const Generation& generation);
  bool share_result(const Generation& generation);
  void check(const Generation& generation) const;
  void log_change(const std::vector<int>& before, const Generation& now) const;
};

void ElasticGroup::Shared::form_group() {
  if (options.backend != "gloo") {
    throw UsageError("elastic",
                     format("a group on {} cannot continue without a rank", options.backend),
                     "use the gloo backend, or leave --elastic out");
  }
  if (membership.has_formed()) {
    joining = true;
    return;
  }
  const auto first = membership.form(size, options.timeout);
  present = first.ranks();
  if (!connect(first)) regroup_or_throw({});
}

void ElasticGroup::Shared::run() {
  std::unique_lock lock(mutex);
  while (true) {
    wake.wait_for(lock, kWatch, [&] { return stop || !queue.empty(); });
    if (stop && (queue.empty() || failure)) break;
    if (queue.empty() && failure) continue;
    std::optional<Job> job;
    if (!queue.empty()) {
      job.emplace(std::move(queue.front()));
      queue.pop_front();
    }
    auto failed = failure;
    lock.unlock();
    if (!failed) {
      try {
        if (!job) {
          watch();
        } else if (job->work) {
          job->work();
        } else {
          run_collective(job->call);
        }
      } catch (...) {
        failed = std::current_exception();
        connections.drop();
        current = nullptr;
      }
    }
    if (job && failed) job->done.set_exception(failed);
    if (job && !failed) job->done.set_value();
    job.reset();
    lock.lock();
    failure = failed;
  }
  lock.unlock();
  connections.drop();
  lock.lock();
  ended = true;
  wake.notify_all();
}

void ElasticGroup::Shared::run_collective(Collective& call) {
  const auto number = progress.finished + 1;
  current = &call;
  while (progress.finished < number) {
    const auto begin = Clock::now();
    inject_fault(ElasticOptions::FaultPoint::kBarrier);
    if (enter_barrier(number, call) && exchange(call)) {
      finish(number, membership.current().number);
    } else {
      regroup_or_throw(std::chrono::duration_cast<milliseconds>(Clock::now() - begin));
    }
  }
  current = nullptr;
  if (call.kind == Collective::Kind::kAdmit) admit_requests(call);
}

// Who waits long leaves a key, so that each can tell who is missing. Short waits cost nothing.
class ElasticGroup::Shared::BarrierWait {
 public:
  BarrierWait(Shared& group, std::vector<int> ranks, std::function<std::string(int rank)> key)
      : group_(group), ranks_(std::move(ranks)), key_(std::move(key)) {
    group_.set_waits_for(without(ranks_, {group_.rank}));
  }
  ~BarrierWait() {
    if (!is_known_) return;
    try {
      group_.table.remove(key_(group_.rank));
    } catch (const std::exception&) {  // NOLINT: the next call reports a lost store
    }
  }
  BarrierWait(const BarrierWait&) = delete;
  BarrierWait& operator=(const BarrierWait&) = delete;

  void look() {
    if (Clock::now() < next_) return;
    if (!is_known_) group_.table.set(key_(group_.rank), "1");
    is_known_ = true;
    next_ = Clock::now() + group_.options.notice_every / 4;
    std::vector<int> missing;
    for (const int rank : ranks_) {
      if (!group_.table.try_get(key_(rank))) missing.push_back(rank);
    }
    if (!missing.empty()) group_.set_waits_for(std::move(missing));
  }

 private:
  Shared& group_;
  const std::vector<int> ranks_;
  const std::function<std::string(int)> key_;
  bool is_known_ = false;
  Clock::time_point next_ = Clock::now() + group_.options.notice_every / 4;
};

// All members have arrived with the same call, so the result of the last one is not needed any
// more.
bool ElasticGroup::Shared::enter_barrier(int64_t number, const Collective& call) {
  const auto& generation = membership.current();
  if (generation.members.size() == 1) return true;
  const auto key = [&](int64_t of, const char* what) {
    return format("{}/{}/{}", generation.number, of, what);
  };
  const auto what = table.claim(key(number, "what"), call.what);
  if (what != call.what) {
    throw Error("elastic",
                format("rank {} is at '{}' where another rank is at '{}'", rank,
                       printable(call.what), printable(what)),
                "see that all ranks make the same calls in the same order; after "
                "Snapshots::after_update() a loop makes none before its next update");
  }
  const auto all = key(number, "all");
  if (table.add(key(number, "come"), 1) == static_cast<int64_t>(generation.members.size())) {
    table.set(all, "1");
    for (const char* item : {"what", "come", "all"}) table.remove(key(number - 1, item));
    return true;
  }
  liveness.begin_wait();
  BarrierWait wait(*this, generation.ranks(),
                   [&](int of) { return key(number, format("waits/{}", of).c_str()); });
  while (!table.wait_for(all, kSlice)) {
    if (membership.is_over() || has_lost_member()) return table.try_get(all).has_value();
    wait.look();
  }
  return true;
}

bool ElasticGroup::Shared::exchange(Collective& call) {
  if (call.kind == Collective::Kind::kAdmit) {
    call.tensors[0].zero_();
    std::vector<int> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    const auto empty = without(all, membership.current().ranks());
    for (const auto& slot : membership.join_requests(empty))
      call.tensors[0][slot.rank] = slot.incarnation;
  }
  saved.clear();
  for (const auto& tensor : call.tensors) saved.push_back(tensor.detach().clone());
  set_waits_for(without(membership.current().ranks(), {rank}));
  try {
    inject_fault(ElasticOptions::FaultPoint::kExchange);
    exchange_tensors(call);
    inject_fault(ElasticOptions::FaultPoint::kEnd);
  } catch (const std::exception&) {  // a connection broke or timed out
    copy(saved, call.tensors);
    return false;
  }
  if (call.kind == Collective::Kind::kAllReduce && call.op == ReduceOp::kAvg) {
    const torch::NoGradGuard no_grad;
    for (auto& tensor : call.tensors) {
      tensor.div_(static_cast<int64_t>(membership.current().members.size()));
    }
  }
  copy(call.tensors, saved);
  return true;
}

void ElasticGroup::Shared::exchange_tensors(const Collective& call) {
  const auto& generation = membership.current();
  const bool is_admission = call.kind == Collective::Kind::kAdmit;
  const auto root = generation.index_of(call.root);
  for (const auto& tensor : call.tensors) {
    if (call.kind == Collective::Kind::kBroadcast) {
      connections.broadcast(tensor, root ? *root : *generation.index_of(*generation.first_old()));
    } else {
      connections.reduce(tensor, is_admission ? ReduceOp::kMax : call.op);
    }
  }
}

void ElasticGroup::Shared::finish(int64_t number, int64_t generation) {
  progress.finished = number;
  progress.finished_in = generation;
  auto ranks = generation == membership.current().number ? membership.current().ranks()
                                                         : membership.read(generation).ranks();
  const std::lock_guard lock(mutex);
  present = std::move(ranks);
}

void ElasticGroup::Shared::admit_requests(const Collective& call) {
  const auto& incarnations = call.tensors[0];
  invitation = {.after = progress.finished};
  for (int slot = 0; slot < size; ++slot) {
    const auto incarnation = incarnations[slot].item<int64_t>();
    if (incarnation > 0) invitation.slots.push_back({slot, incarnation});
  }
  const auto is_done = [&](const Slot& guest) {
    const auto slots = membership.current().slots();
    return std::find(slots.begin(), slots.end(), guest) != slots.end() || liveness.is_lost(guest);
  };
  while (!std::all_of(invitation.slots.begin(), invitation.slots.end(), is_done)) {
    regroup_or_throw({});
  }
  invitation = {};
}

void ElasticGroup::Shared::ask_to_join() {
  liveness.begin_wait();
  membership.request_join();
  while (true) {
    if (const auto invited = membership.invitation()) {
      progress = {.invited_after = invited->after};
      if (regroup()) break;
    }
    if (table.try_get("closed")) {
      throw Error("elastic", format("the training ended before rank {} could rejoin", rank));
    }
    const auto members = membership.last().slots();
    if (liveness.lost_among(members).size() == members.size()) {
      throw RestartNeeded("elastic",
                          format("rank {} rejoined, and no member of the group is left", rank),
                          "restart all ranks: fleetrun does so with --max_restarts");
    }
    std::this_thread::sleep_for(kSlice);
  }
  const std::lock_guard lock(mutex);
  joining = false;
  present = membership.current().ranks();
}

// While this rank computes, others may wait for it to regroup.
void ElasticGroup::Shared::watch() {
  if (joining || membership.current().members.size() < 2) return;
  liveness.begin_wait();
  if (membership.is_over() || has_lost_member()) regroup_or_throw({});
}

void ElasticGroup::Shared::regroup_or_throw(milliseconds waited) {
  liveness.begin_wait(waited);
  if (regroup()) return;
  throw Error(
      "elastic",
      format("rank {} had no heartbeat for more than {:.0f} s, and the others have continued "
             "without it",
             rank, static_cast<double>(options.timeout.count()) / 1e3),
      "a restarted rank joins them: fleetrun restarts it with --max_restarts; give "
      "slow ranks more time with FLEET_TIMEOUT_S");
}

// False when the others have formed a group without this rank.
bool ElasticGroup::Shared::regroup() {
  const auto before = membership.current().ranks();
  while (true) {
    connections.drop();  // pending calls of the other members fail, and they regroup too
    inject_fault(ElasticOptions::FaultPoint::kRegroup);
    const auto next = membership.next(progress, invitation);
    if (!next) return false;
    check(*next);
    if (!connect(*next) || !share_result(*next)) continue;
    log_change(before, *next);
    return true;
  }
}

void ElasticGroup::Shared::check(const Generation& generation) const {
  const char* fix = "restart all ranks: fleetrun does so with --max_restarts";
  if (!generation.first_old()) {
    throw RestartNeeded("elastic", "no rank with the training state is left", fix);
  }
  if (static_cast<int>(generation.members.size()) < elastic.min_ranks) {
    throw RestartNeeded("elastic",
                        format("{} of {} ranks are left, and --min_ranks is {}",
                               generation.members.size(), size, elastic.min_ranks),
                        fix);
  }
}

bool ElasticGroup::Shared::connect(const Generation& generation) {
  return connections.connect(table.prefixed(format("connections/{}", generation.number)),
                             *generation.index_of(rank),
                             static_cast<int>(generation.members.size()));
}

// A rank whose current call another member has completed receives its result.
bool ElasticGroup::Shared::share_result(const Generation& generation) {
  const auto most = generation.most_finished();
  const auto& members = generation.members;
  const auto holder = std::find_if(members.begin(), members.end(), [&](const Member& member) {
    const auto& progress = member.progress;
    return progress.finished == most && !(progress.is_new() && progress.invited_after == most);
  });
  const auto has_no_state = [](const MemberProgress& progress) {
    return progress.finished < progress.invited_after;
  };
  FLEET_ASSERT(holder != members.end(), "a member has the result of the last call");
  FLEET_ASSERT(progress.finished == most || has_no_state(progress) ||
                   (current != nullptr && progress.finished + 1 == most),
               "ranks are one call apart at most");
  const auto holder_index = static_cast<int>(holder - members.begin());
  try {
    for (int i = 0; i < static_cast<int>(members.size()); ++i) {
      const auto& member = members[static_cast<size_t>(i)];
      if (member.progress.finished == most || has_no_state(member.progress)) continue;
      if (holder->slot.rank == rank) connections.send(saved, i);
      if (member.slot.rank != rank) continue;
      saved = connections.receive_like(current->tensors, holder_index);  // all tensors or none
      copy(saved, current->tensors);
      finish(most, holder->progress.finished_in);
    }
  } catch (const std::exception&) {  // a connection broke or timed out
    return false;
  }
  if (has_no_state(progress)) {
    progress.finished = most;
    progress.invited_after = most;  // so it has no result of that call
    progress.finished_in = holder->progress.finished_in;
  }
  return true;
}

// Only a rank that was a member before can compare.
void ElasticGroup::Shared::log_change(const std::vector<int>& before, const Generation& now) const {
  const auto ranks = now.ranks();
  const auto lost = without(before, ranks);
  const auto rejoined = without(ranks, before);
  log::set_enabled(now.first_old() == rank);
  if (!lost.empty()) {
    log::warn("elastic", format("{} {} lost: {} {}", names(lost), lost.size() == 1 ? "is" : "are",
                                names(ranks), ranks.size() == 1 ? "continues" : "continue"));
  }
  if (!rejoined.empty()) {
    log::info("elastic", format("{} {} rejoined: {} train", names(rejoined),
                                rejoined.size() == 1 ? "has" : "have", names(ranks)));
  }
  log::set_enabled(ranks.front() == rank);
}

ElasticGroup::ElasticGroup(const Store& store, int rank, int size,
                           const CommunicatorOptions& options, ElasticOptions elastic)
    : shared_(
          std::make_shared<Shared>(store.duplicate(), rank, size, options, std::move(elastic))) {
  shared_->form_group();
  shared_->thread = std::thread([shared = shared_] { shared->run(); });
}

ElasticGroup::~ElasticGroup() { stop(); }

int ElasticGroup::rank() const { return shared_->rank; }
int ElasticGroup::size() const { return shared_->size; }

std::shared_future<void> ElasticGroup::submit(Collective call) {
  return shared_->push({.call = std::move(call)}).share();
}

bool ElasticGroup::is_joining() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->joining;
}

void ElasticGroup::join() {
  shared_->push({.work = [shared = shared_.get()] { shared->ask_to_join(); }}).get();
}

std::vector<int> ElasticGroup::admit() {
  const auto incarnations = torch::zeros({size()}, torch::kLong);
  submit({.kind = Collective::Kind::kAdmit,
          .tensors = {incarnations},
          .what = "processes that ask to join"})
      .get();
  std::vector<int> ranks;
  for (int slot = 0; slot < size(); ++slot) {
    if (incarnations[slot].item<int64_t>() > 0) ranks.push_back(slot);
  }
  return ranks;
}

void ElasticGroup::finish_admission() {
  shared_->push({.work = [shared = shared_.get()] { shared->progress.invited_after = 0; }}).get();
}

std::vector<int> ElasticGroup::present() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->present;
}

std::string ElasticGroup::waits_for() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->waits_for.empty() ? "the other ranks" : names(shared_->waits_for);
}

void ElasticGroup::leave() {
  if (is_joining()) return;
  shared_
      ->push({.work =
                  [shared = shared_.get()] {
                    shared->table.set("closed", "1");
                    const std::lock_guard lock(shared->mutex);
                    shared->stop = true;  // from now on lost ranks are ignored
                  }})
      .get();
}

void ElasticGroup::stop() { join_or_detach(shared_->thread, *shared_); }

}  // namespace fleet::comm
