#include "fleet/comm/elastic_group.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <utility>

#include "fleet/comm/elastic_engine.h"
#include "fleet/comm/hanging_thread.h"
#include "fleet/comm/membership.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/restart_needed.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kSlice{20};   // of a wait, between two looks at who is gone
constexpr milliseconds kWatch{100};  // between two looks while there is nothing to do

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
  ElasticCall call;
  std::function<void()> work;  // instead of a call
  std::promise<void> done;
};

struct ElasticGroup::Shared : Ending {
  // The thread's only.
  Store table;
  Liveness liveness;
  Membership membership;
  CommunicatorOptions options;
  int rank;
  int size;
  ElasticOptions elastic;
  Standing standing;
  Invitation invitation;
  ElasticEngine engine;
  ElasticCall* current = nullptr;
  std::vector<torch::Tensor> kept;  // what went into the current call, or what came out of the last

  // Guarded by `mutex`.
  std::deque<Job> queue;
  std::exception_ptr failure;  // after which no call is possible
  std::vector<int> present;
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
        engine(std::move(options)) {}

  std::future<void> push(Job job) {
    auto future = job.done.get_future();
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(job));
    wake.notify_all();
    return future;
  }
  void accident(ElasticOptions::Moment moment) const {
    if (elastic.accident) elastic.accident(moment, standing.finished + 1);
  }
  void found();
  void run();
  void carry_out(ElasticCall& call);
  bool come(int64_t number, const ElasticCall& call);
  bool exchange(ElasticCall& call);
  void exchange_tensors(const ElasticCall& call);
  void finish(int64_t number, int64_t generation);
  void let_in(const ElasticCall& call);
  void ask_to_join();
  void watch();
  bool someone_is_gone() { return !liveness.gone_among(membership.current().seats()).empty(); }

  bool regroup();
  void regroup_or_throw(milliseconds waited);
  bool connect(const Generation& generation);
  bool share_result(const Generation& generation);
  void check(const Generation& generation) const;
  void tell(const std::vector<int>& before, const Generation& now) const;
};

void ElasticGroup::Shared::found() {
  if (options.backend != "gloo") {
    throw Error("elastic", format("a group on {} cannot go on without a rank", options.backend),
                "use the gloo backend, or leave --elastic out");
  }
  if (membership.is_founded()) {
    joining = true;
    return;
  }
  const auto first = membership.found(size, options.timeout);
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
          carry_out(job->call);
        }
      } catch (...) {
        failed = std::current_exception();
        engine.drop();
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
  engine.drop();
  lock.lock();
  ended = true;
  wake.notify_all();
}

void ElasticGroup::Shared::carry_out(ElasticCall& call) {
  const auto number = standing.finished + 1;
  current = &call;
  while (standing.finished < number) {
    const auto begin = Clock::now();
    accident(ElasticOptions::Moment::kMeeting);
    if (come(number, call) && exchange(call)) {
      finish(number, membership.current().number);
    } else {
      regroup_or_throw(std::chrono::duration_cast<milliseconds>(Clock::now() - begin));
    }
  }
  current = nullptr;
  if (call.kind == ElasticCall::Kind::kAdmit) let_in(call);
}

// All members are here, with the same call; nobody needs the last one's result any more.
bool ElasticGroup::Shared::come(int64_t number, const ElasticCall& call) {
  const auto& generation = membership.current();
  if (generation.members.size() == 1) return true;
  const auto key = [&](int64_t of, const char* what) {
    return format("{}/{}/{}", generation.number, of, what);
  };
  const auto what = table.claim(key(number, "what"), call.what);
  if (what != call.what) {
    throw Error("elastic",
                format("rank {} is at '{}' where another rank is at '{}'", rank, call.what, what),
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
  while (!table.wait_for(all, kSlice)) {
    if (membership.is_over() || someone_is_gone()) return table.try_get(all).has_value();
  }
  return true;
}

bool ElasticGroup::Shared::exchange(ElasticCall& call) {
  if (call.kind == ElasticCall::Kind::kAdmit) {
    call.tensors[0].zero_();
    std::vector<int> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    const auto empty = without(all, membership.current().ranks());
    for (const auto& seat : membership.asking(empty)) call.tensors[0][seat.rank] = seat.life;
  }
  kept.clear();
  for (const auto& tensor : call.tensors) kept.push_back(tensor.detach().clone());
  try {
    accident(ElasticOptions::Moment::kExchange);
    exchange_tensors(call);
    accident(ElasticOptions::Moment::kEnd);
  } catch (const std::exception&) {  // a connection broke, or the time is up
    copy(kept, call.tensors);
    return false;
  }
  if (call.kind == ElasticCall::Kind::kReduce && call.op == ReduceOp::kAvg) {
    const torch::NoGradGuard no_grad;
    for (auto& tensor : call.tensors) {
      tensor.div_(static_cast<int64_t>(membership.current().members.size()));
    }
  }
  copy(call.tensors, kept);
  return true;
}

void ElasticGroup::Shared::exchange_tensors(const ElasticCall& call) {
  const auto& generation = membership.current();
  const bool is_admission = call.kind == ElasticCall::Kind::kAdmit;
  const auto root = generation.index_of(call.root);
  for (const auto& tensor : call.tensors) {
    if (call.kind == ElasticCall::Kind::kBroadcast) {
      engine.broadcast(tensor, root ? *root : *generation.index_of(*generation.first_old()));
    } else {
      engine.reduce(tensor, is_admission ? ReduceOp::kMax : call.op);
    }
  }
}

void ElasticGroup::Shared::finish(int64_t number, int64_t generation) {
  standing.finished = number;
  standing.finished_in = generation;
  auto ranks = generation == membership.current().number ? membership.current().ranks()
                                                         : membership.read(generation).ranks();
  const std::lock_guard lock(mutex);
  present = std::move(ranks);
}

void ElasticGroup::Shared::let_in(const ElasticCall& call) {
  const auto& lives = call.tensors[0];
  invitation = {.after = standing.finished};
  for (int seat = 0; seat < size; ++seat) {
    const auto life = lives[seat].item<int64_t>();
    if (life > 0) invitation.seats.push_back({seat, life});
  }
  const auto is_done = [&](const Seat& guest) {
    const auto seats = membership.current().seats();
    return std::find(seats.begin(), seats.end(), guest) != seats.end() || liveness.is_gone(guest);
  };
  while (!std::all_of(invitation.seats.begin(), invitation.seats.end(), is_done)) {
    regroup_or_throw({});
  }
  invitation = {};
}

void ElasticGroup::Shared::ask_to_join() {
  liveness.begin_wait();
  membership.ask();
  while (true) {
    if (const auto invited = membership.invited()) {
      standing = {.invited_after = invited->after};
      if (regroup()) break;
    }
    if (table.try_get("closed")) {
      throw Error("elastic", format("the training ended before rank {} could come back", rank));
    }
    const auto members = membership.last().seats();
    if (liveness.gone_among(members).size() == members.size()) {
      throw RestartNeeded(
          "elastic", format("rank {} came back, and of those who went on nobody is left", rank),
          "start all ranks again: fleetrun does so with --max_restarts");
    }
    std::this_thread::sleep_for(kSlice);
  }
  const std::lock_guard lock(mutex);
  joining = false;
  present = membership.current().ranks();
}

// While this rank computes, others may have to wait for it to regroup.
void ElasticGroup::Shared::watch() {
  if (joining || membership.current().members.size() < 2) return;
  liveness.begin_wait();
  if (membership.is_over() || someone_is_gone()) regroup_or_throw({});
}

void ElasticGroup::Shared::regroup_or_throw(milliseconds waited) {
  liveness.begin_wait(waited);
  if (regroup()) return;
  throw Error(
      "elastic",
      format("rank {} was silent for more than {:.0f} s, and the others have gone on without "
             "it",
             rank, static_cast<double>(options.timeout.count()) / 1e3),
      "a rank that is started again joins them: fleetrun does so with --max_restarts; give "
      "slow ranks more time with FLEET_TIMEOUT_S");
}

// False when the others have a group without this rank.
bool ElasticGroup::Shared::regroup() {
  const auto before = membership.current().ranks();
  while (true) {
    engine.drop();  // breaks the connections, so that all others notice
    accident(ElasticOptions::Moment::kRegroup);
    const auto next = membership.next(standing, invitation);
    if (!next) return false;
    check(*next);
    if (!connect(*next) || !share_result(*next)) continue;
    tell(before, *next);
    return true;
  }
}

void ElasticGroup::Shared::check(const Generation& generation) const {
  const char* fix = "start all ranks again: fleetrun does so with --max_restarts";
  if (!generation.first_old()) {
    throw RestartNeeded("elastic", "of those who knew the state of the training nobody is left",
                        fix);
  }
  if (static_cast<int>(generation.members.size()) < elastic.min_ranks) {
    throw RestartNeeded("elastic",
                        format("{} of {} ranks are left, and --min_ranks is {}",
                               generation.members.size(), size, elastic.min_ranks),
                        fix);
  }
}

bool ElasticGroup::Shared::connect(const Generation& generation) {
  return engine.connect(table.prefixed(format("engine/{}", generation.number)),
                        *generation.index_of(rank), static_cast<int>(generation.members.size()));
}

// Whoever was in a call that another one had finished gets what came out of it.
bool ElasticGroup::Shared::share_result(const Generation& generation) {
  const auto most = generation.most_finished();
  const auto& members = generation.members;
  const auto holder = std::find_if(members.begin(), members.end(), [&](const Member& member) {
    const auto& standing = member.standing;
    return standing.finished == most && !(standing.is_new() && standing.invited_after == most);
  });
  const auto knows_nothing = [](const Standing& standing) {
    return standing.finished < standing.invited_after;
  };
  FLEET_ASSERT(holder != members.end(), "somebody knows what the last call brought");
  FLEET_ASSERT(standing.finished == most || knows_nothing(standing) ||
                   (current != nullptr && standing.finished + 1 == most),
               "ranks are one call apart at most");
  const auto holder_index = static_cast<int>(holder - members.begin());
  try {
    for (int i = 0; i < static_cast<int>(members.size()); ++i) {
      const auto& member = members[static_cast<size_t>(i)];
      if (member.standing.finished == most || knows_nothing(member.standing)) continue;
      if (holder->seat.rank == rank) engine.send(kept, i);
      if (member.seat.rank != rank) continue;
      kept = engine.receive_like(current->tensors, holder_index);  // all of it or nothing
      copy(kept, current->tensors);
      finish(most, holder->standing.finished_in);
    }
  } catch (const std::exception&) {  // a connection broke, or the time is up
    return false;
  }
  if (knows_nothing(standing)) {
    standing.finished = most;
    standing.invited_after = most;  // so it has no result of it
    standing.finished_in = holder->standing.finished_in;
  }
  return true;
}

// Those who have just come do not know who was there before.
void ElasticGroup::Shared::tell(const std::vector<int>& before, const Generation& now) const {
  const auto ranks = now.ranks();
  const auto gone = without(before, ranks);
  const auto back = without(ranks, before);
  log::set_speaks(now.first_old() == rank);
  if (!gone.empty()) {
    log::warn("elastic",
              format("{} {} gone: {} {} on", names(gone), gone.size() == 1 ? "is" : "are",
                     names(ranks), ranks.size() == 1 ? "goes" : "go"));
  }
  if (!back.empty()) {
    log::info("elastic", format("{} {} back: {} train", names(back),
                                back.size() == 1 ? "is" : "are", names(ranks)));
  }
  log::set_speaks(ranks.front() == rank);
}

ElasticGroup::ElasticGroup(const Store& store, int rank, int size,
                           const CommunicatorOptions& options, ElasticOptions elastic)
    : shared_(
          std::make_shared<Shared>(store.duplicate(), rank, size, options, std::move(elastic))) {
  shared_->found();
  shared_->thread = std::thread([shared = shared_] { shared->run(); });
}

ElasticGroup::~ElasticGroup() { rest(); }

int ElasticGroup::rank() const { return shared_->rank; }
int ElasticGroup::size() const { return shared_->size; }

std::shared_future<void> ElasticGroup::submit(ElasticCall call) {
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
  const auto lives = torch::zeros({size()}, torch::kLong);
  submit({.kind = ElasticCall::Kind::kAdmit, .tensors = {lives}, .what = "who comes back"}).get();
  std::vector<int> ranks;
  for (int seat = 0; seat < size(); ++seat) {
    if (lives[seat].item<int64_t>() > 0) ranks.push_back(seat);
  }
  return ranks;
}

void ElasticGroup::settle() {
  shared_->push({.work = [shared = shared_.get()] { shared->standing.invited_after = 0; }}).get();
}

std::vector<int> ElasticGroup::present() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->present;
}

void ElasticGroup::leave() {
  if (is_joining()) return;
  shared_
      ->push({.work =
                  [shared = shared_.get()] {
                    shared->table.set("closed", "1");
                    const std::lock_guard lock(shared->mutex);
                    shared->stop = true;  // from here on nobody is missed
                  }})
      .get();
}

void ElasticGroup::rest() { end_or_let_go(shared_->thread, *shared_); }

}  // namespace fleet::comm
