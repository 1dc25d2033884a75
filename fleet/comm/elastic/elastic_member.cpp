// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/elastic/elastic_member.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

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

constexpr milliseconds kSlice{20};  // of a wait, between two checks for lost ranks

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

ElasticMember::ElasticMember(const Store& store, int rank, int size, CommunicatorOptions options,
                             ElasticOptions elastic)
    : table_(store.prefixed("elastic")),
      liveness_(store, rank, options.timeout),
      membership_(store, liveness_),
      options_(options),
      rank_(rank),
      size_(size),
      elastic_(std::move(elastic)),
      connections_(std::move(options)) {}

void ElasticMember::form_group() {
  if (options_.backend != "gloo") {
    throw UsageError("elastic",
                     format("a group on {} cannot continue without a rank", options_.backend),
                     "use the gloo backend, or leave --elastic out");
  }
  if (membership_.has_formed()) {
    const std::lock_guard lock(mutex_);
    is_joining_ = true;
    return;
  }
  const auto first = membership_.form(size_, options_.timeout);
  set_present(first.ranks());
  if (!connect(first)) regroup_or_throw({});
}

void ElasticMember::run(Collective& call) {
  const auto number = progress_.finished + 1;
  current_ = &call;
  while (progress_.finished < number) {
    const auto begin = Clock::now();
    inject_fault(ElasticOptions::FaultPoint::kBarrier);
    if (enter_barrier(number, call) && exchange(call)) {
      finish(number, membership_.current().number);
    } else {
      regroup_or_throw(std::chrono::duration_cast<milliseconds>(Clock::now() - begin));
    }
  }
  current_ = nullptr;
  if (call.kind == Collective::Kind::kAdmit) admit_requests(call);
}

// Who waits long leaves a key, so that each can tell who is missing. Short waits cost nothing.
class ElasticMember::BarrierWait {
 public:
  BarrierWait(ElasticMember& group, std::vector<int> ranks,
              std::function<std::string(int rank)> key)
      : group_(group), ranks_(std::move(ranks)), key_(std::move(key)) {
    group_.set_waits_for(without(ranks_, {group_.rank_}));
  }
  ~BarrierWait() {
    if (!is_known_) return;
    try {
      group_.table_.remove(key_(group_.rank_));
    } catch (const std::exception&) {  // NOLINT: the next call reports a lost store
    }
  }
  BarrierWait(const BarrierWait&) = delete;
  BarrierWait& operator=(const BarrierWait&) = delete;

  void look() {
    if (Clock::now() < next_) return;
    if (!is_known_) group_.table_.set(key_(group_.rank_), "1");
    is_known_ = true;
    next_ = Clock::now() + group_.options_.notice_every / 4;
    std::vector<int> missing;
    for (const int rank : ranks_) {
      if (!group_.table_.try_get(key_(rank))) missing.push_back(rank);
    }
    if (!missing.empty()) group_.set_waits_for(std::move(missing));
  }

 private:
  ElasticMember& group_;
  const std::vector<int> ranks_;
  const std::function<std::string(int)> key_;
  bool is_known_ = false;
  Clock::time_point next_ = Clock::now() + group_.options_.notice_every / 4;
};

// All members have arrived with the same call, so the result of the last one is not needed any
// more.
bool ElasticMember::enter_barrier(int64_t number, const Collective& call) {
  const auto& generation = membership_.current();
  if (generation.members.size() == 1) return true;
  const auto key = [&](int64_t of, const char* what) {
    return format("{}/{}/{}", generation.number, of, what);
  };
  const auto what = table_.claim(key(number, "what"), call.what);
  if (what != call.what) {
    throw Error("elastic",
                format("rank {} is at '{}' where another rank is at '{}'", rank_,
                       printable(call.what), printable(what)),
                "see that all ranks make the same calls in the same order; after "
                "Snapshots::after_update() a loop makes none before its next update");
  }
  const auto all = key(number, "all");
  if (table_.add(key(number, "come"), 1) == static_cast<int64_t>(generation.members.size())) {
    table_.set(all, "1");
    for (const char* item : {"what", "come", "all"}) table_.remove(key(number - 1, item));
    return true;
  }
  liveness_.begin_wait();
  BarrierWait wait(*this, generation.ranks(),
                   [&](int of) { return key(number, format("waits/{}", of).c_str()); });
  while (!table_.wait_for(all, kSlice)) {
    if (membership_.is_over() || has_lost_member()) return table_.try_get(all).has_value();
    wait.look();
  }
  return true;
}

bool ElasticMember::exchange(Collective& call) {
  if (call.kind == Collective::Kind::kAdmit) {
    call.tensors[0].zero_();
    std::vector<int> all(static_cast<size_t>(size_));
    std::iota(all.begin(), all.end(), 0);
    const auto empty = without(all, membership_.current().ranks());
    for (const auto& slot : membership_.join_requests(empty))
      call.tensors[0][slot.rank] = slot.incarnation;
  }
  saved_.clear();
  for (const auto& tensor : call.tensors) saved_.push_back(tensor.detach().clone());
  set_waits_for(without(membership_.current().ranks(), {rank_}));
  try {
    inject_fault(ElasticOptions::FaultPoint::kExchange);
    exchange_tensors(call);
    inject_fault(ElasticOptions::FaultPoint::kEnd);
  } catch (const std::exception&) {  // a connection broke or timed out
    copy(saved_, call.tensors);
    return false;
  }
  if (call.kind == Collective::Kind::kAllReduce && call.op == ReduceOp::kAvg) {
    const torch::NoGradGuard no_grad;
    for (auto& tensor : call.tensors) {
      tensor.div_(static_cast<int64_t>(membership_.current().members.size()));
    }
  }
  copy(call.tensors, saved_);
  return true;
}

void ElasticMember::exchange_tensors(const Collective& call) {
  const auto& generation = membership_.current();
  const bool is_admission = call.kind == Collective::Kind::kAdmit;
  const auto root = generation.index_of(call.root);
  for (const auto& tensor : call.tensors) {
    if (call.kind == Collective::Kind::kBroadcast) {
      connections_.broadcast(tensor, root ? *root : *generation.index_of(*generation.first_old()));
    } else {
      connections_.reduce(tensor, is_admission ? ReduceOp::kMax : call.op);
    }
  }
}

void ElasticMember::finish(int64_t number, int64_t generation) {
  progress_.finished = number;
  progress_.finished_in = generation;
  set_present(generation == membership_.current().number ? membership_.current().ranks()
                                                         : membership_.read(generation).ranks());
}

void ElasticMember::admit_requests(const Collective& call) {
  const auto& incarnations = call.tensors[0];
  invitation_ = {.after = progress_.finished};
  for (int slot = 0; slot < size_; ++slot) {
    const auto incarnation = incarnations[slot].item<int64_t>();
    if (incarnation > 0) invitation_.slots.push_back({slot, incarnation});
  }
  const auto is_done = [&](const Slot& guest) {
    const auto slots = membership_.current().slots();
    return std::find(slots.begin(), slots.end(), guest) != slots.end() || liveness_.is_lost(guest);
  };
  while (!std::all_of(invitation_.slots.begin(), invitation_.slots.end(), is_done)) {
    regroup_or_throw({});
  }
  invitation_ = {};
}

void ElasticMember::ask_to_join() {
  liveness_.begin_wait();
  membership_.request_join();
  while (true) {
    if (const auto invited = membership_.invitation()) {
      progress_ = {.invited_after = invited->after};
      if (regroup()) break;
    }
    if (table_.try_get("closed")) {
      throw Error("elastic", format("the training ended before rank {} could rejoin", rank_));
    }
    const auto members = membership_.last().slots();
    if (liveness_.lost_among(members).size() == members.size()) {
      throw RestartNeeded("elastic",
                          format("rank {} rejoined, and no member of the group is left", rank_),
                          "restart all ranks: fleetrun does so with --max_restarts");
    }
    std::this_thread::sleep_for(kSlice);
  }
  set_present(membership_.current().ranks());
  const std::lock_guard lock(mutex_);
  is_joining_ = false;
}

void ElasticMember::watch() {
  if (is_joining() || membership_.current().members.size() < 2) return;
  liveness_.begin_wait();
  if (membership_.is_over() || has_lost_member()) regroup_or_throw({});
}

void ElasticMember::regroup_or_throw(Milliseconds waited) {
  liveness_.begin_wait(waited);
  if (regroup()) return;
  throw Error(
      "elastic",
      format("rank {} had no heartbeat for more than {:.0f} s, and the others have continued "
             "without it",
             rank_, static_cast<double>(options_.timeout.count()) / 1e3),
      "a restarted rank joins them: fleetrun restarts it with --max_restarts; give "
      "slow ranks more time with FLEET_TIMEOUT_S");
}

// False when the others have formed a group without this rank.
bool ElasticMember::regroup() {
  const auto before = membership_.current().ranks();
  while (true) {
    connections_.drop();  // pending calls of the other members fail, and they regroup too
    inject_fault(ElasticOptions::FaultPoint::kRegroup);
    const auto next = membership_.next(progress_, invitation_);
    if (!next) return false;
    check(*next);
    if (!connect(*next) || !share_result(*next)) continue;
    log_change(before, *next);
    return true;
  }
}

void ElasticMember::check(const Generation& generation) const {
  const char* fix = "restart all ranks: fleetrun does so with --max_restarts";
  if (!generation.first_old()) {
    throw RestartNeeded("elastic", "no rank with the training state is left", fix);
  }
  if (static_cast<int>(generation.members.size()) < elastic_.min_ranks) {
    throw RestartNeeded("elastic",
                        format("{} of {} ranks are left, and --min_ranks is {}",
                               generation.members.size(), size_, elastic_.min_ranks),
                        fix);
  }
}

bool ElasticMember::connect(const Generation& generation) {
  return connections_.connect(table_.prefixed(format("connections/{}", generation.number)),
                              *generation.index_of(rank_),
                              static_cast<int>(generation.members.size()));
}

// A rank whose current call another member has completed receives its result.
bool ElasticMember::share_result(const Generation& generation) {
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
  FLEET_ASSERT(progress_.finished == most || has_no_state(progress_) ||
                   (current_ != nullptr && progress_.finished + 1 == most),
               "ranks are one call apart at most");
  const auto holder_index = static_cast<int>(holder - members.begin());
  try {
    for (int i = 0; i < static_cast<int>(members.size()); ++i) {
      const auto& member = members[static_cast<size_t>(i)];
      if (member.progress.finished == most || has_no_state(member.progress)) continue;
      if (holder->slot.rank == rank_) connections_.send(saved_, i);
      if (member.slot.rank != rank_) continue;
      saved_ = connections_.receive_like(current_->tensors, holder_index);  // all tensors or none
      copy(saved_, current_->tensors);
      finish(most, holder->progress.finished_in);
    }
  } catch (const std::exception&) {  // a connection broke or timed out
    return false;
  }
  if (has_no_state(progress_)) {
    progress_.finished = most;
    progress_.invited_after = most;  // so it has no result of that call
    progress_.finished_in = holder->progress.finished_in;
  }
  return true;
}

// Only a rank that was a member before can compare.
void ElasticMember::log_change(const std::vector<int>& before, const Generation& now) const {
  const auto ranks = now.ranks();
  const auto lost = without(before, ranks);
  const auto rejoined = without(ranks, before);
  log::set_enabled(now.first_old() == rank_);
  if (!lost.empty()) {
    log::warn("elastic", format("{} {} lost: {} {}", names(lost), lost.size() == 1 ? "is" : "are",
                                names(ranks), ranks.size() == 1 ? "continues" : "continue"));
  }
  if (!rejoined.empty()) {
    log::info("elastic", format("{} {} rejoined: {} train", names(rejoined),
                                rejoined.size() == 1 ? "has" : "have", names(ranks)));
  }
  log::set_enabled(ranks.front() == rank_);
}

void ElasticMember::disconnect() {
  connections_.drop();
  current_ = nullptr;
}

void ElasticMember::set_waits_for(std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  waits_for_ = std::move(ranks);
}

void ElasticMember::set_present(std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  present_ = std::move(ranks);
}

bool ElasticMember::is_joining() const {
  const std::lock_guard lock(mutex_);
  return is_joining_;
}

std::vector<int> ElasticMember::present() const {
  const std::lock_guard lock(mutex_);
  return present_;
}

std::string ElasticMember::waits_for() const {
  const std::lock_guard lock(mutex_);
  return waits_for_.empty() ? "the other ranks" : names(waits_for_);
}

}  // namespace fleet::comm
