// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/elastic/membership.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::comm {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxRanks = 65536;
constexpr milliseconds kSlice{20};  // between two checks for lost ranks

std::string key_of(int64_t number, std::string_view what) {
  return format("generation/{}/{}", number, what);
}
std::string announcement_key(int64_t number, const Slot& slot) {
  return key_of(number, format("announced/{}/{}", slot.rank, slot.incarnation));
}

std::ostream& operator<<(std::ostream& out, const Slot& slot) {
  return out << slot.rank << ' ' << slot.incarnation << ' ';
}
std::istream& operator>>(std::istream& in, Slot& slot) {
  in >> slot.rank >> slot.incarnation;
  const bool is_one = slot.rank >= 0 && static_cast<size_t>(slot.rank) < kMaxRanks;
  if (!is_one || slot.incarnation < 0) in.setstate(std::ios::failbit);
  return in;
}

std::ostream& operator<<(std::ostream& out, const MemberProgress& progress) {
  return out << progress.finished << ' ' << progress.finished_in << ' ' << progress.invited_after
             << ' ';
}
std::istream& operator>>(std::istream& in, MemberProgress& progress) {
  return in >> progress.finished >> progress.finished_in >> progress.invited_after;
}

std::ostream& operator<<(std::ostream& out, const Member& member) {
  return out << member.slot << member.progress;
}
std::istream& operator>>(std::istream& in, Member& member) {
  return in >> member.slot >> member.progress;
}

template <typename Items>
void write(std::ostream& out, const Items& items) {
  out << items.size() << ' ';
  for (const auto& item : items) out << item;
}
template <typename Items>
void read_items(std::istream& in, Items& items) {
  size_t count = 0;
  in >> count;
  if (!in || count > kMaxRanks) {  // before memory is allocated for them
    in.setstate(std::ios::failbit);
    return;
  }
  items.resize(count);
  for (auto& item : items) in >> item;
}

// What a rank has written is parsed completely, or the job ends with an error.
template <typename Read>
void parse(const std::string& text, std::string_view what, Read read) {
  std::istringstream words(text);
  read(words);
  if (!words.fail()) return;
  throw Error("elastic", format("the store has no {} but '{}'", what, printable(text, 80)),
              "all ranks have to run the same version of Fleet");
}

int64_t number_in(const std::string& text, std::string_view what) {
  int64_t number = 0;
  parse(text, what, [&](std::istream& in) { in >> number; });
  return number;
}

}  // namespace

std::vector<int> Generation::ranks() const {
  std::vector<int> ranks;
  for (const auto& member : members) ranks.push_back(member.slot.rank);
  return ranks;
}

std::vector<Slot> Generation::slots() const {
  std::vector<Slot> slots;
  for (const auto& member : members) slots.push_back(member.slot);
  return slots;
}

std::optional<int> Generation::index_of(int rank) const {
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].slot.rank == rank) return static_cast<int>(i);
  }
  return std::nullopt;
}

int64_t Generation::most_finished() const {
  int64_t most = 0;
  for (const auto& member : members) most = std::max(most, member.progress.finished);
  return most;
}

std::optional<int> Generation::first_old() const {
  for (const auto& member : members) {
    if (!member.progress.is_new()) return member.slot.rank;
  }
  return std::nullopt;
}

Membership::Membership(Store store, Liveness& liveness)
    : table_(store.prefixed("membership")), liveness_(liveness) {}

bool Membership::has_formed() { return table_.try_get("last").has_value(); }

std::vector<int> Membership::find_slots(std::vector<int> ranks) {
  std::erase_if(ranks, [&](int rank) {
    const auto slot = liveness_.slot_of(rank, milliseconds(1));
    if (slot) expected_.push_back(*slot);
    return slot.has_value();
  });
  return ranks;
}

Generation Membership::form(int size, milliseconds limit, milliseconds notice_every) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + limit;
  WaitNotice notice("init", limit, notice_every);
  std::vector<int> missing(static_cast<size_t>(size));
  std::iota(missing.begin(), missing.end(), 0);
  while (!(missing = find_slots(std::move(missing))).empty() && Clock::now() < deadline) {
    notice.log_if_due(ranks_text(missing));
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    liveness_.slot_of(missing.front(), std::clamp(notice.until_next(), milliseconds(1),
                                                  std::max(left, milliseconds(1))));
  }
  if (!missing.empty()) {
    throw Error(
        "elastic",
        format("rank {} waited {:.0f} s, and of {} ranks {} did not arrive", liveness_.own().rank,
               static_cast<double>(limit.count()) / 1e3, size, ranks_text(missing)),
        "see whether they were started, and whether they died before fleet::init()");
  }
  std::sort(expected_.begin(), expected_.end());
  const auto generation = next({}, {});
  if (generation) return *generation;
  throw Error("elastic",
              format("rank {} came when the others had begun without it", liveness_.own().rank));
}

std::optional<Generation> Membership::next(const MemberProgress& own,
                                           const Invitation& invitation) {
  for (int64_t number = current_.number + 1;; ++number) {
    announce(number, {own, invitation});
    invite(number, invitation);
    const auto agreed = agree(number, {own, invitation});
    if (!agreed) continue;
    expected_ = agreed->slots();
    const auto index = agreed->index_of(liveness_.own().rank);
    const bool is_on_it =
        index && agreed->members[static_cast<size_t>(*index)].slot == liveness_.own();
    if (!is_on_it) return std::nullopt;
    if (!pass_barrier(*agreed)) continue;
    current_ = *agreed;
    return current_;
  }
}

bool Membership::has_begun(int64_t number) {
  return table_.try_get(key_of(number, "begun")).has_value();
}

void Membership::announce(int64_t number, const Announcement& own) {
  std::ostringstream text;
  text << own.progress << own.invitation.after << ' ';
  write(text, own.invitation.slots);
  table_.set(announcement_key(number, liveness_.own()), text.str());
  table_.set(key_of(number, "begun"), "1");
}

std::optional<Membership::Announcement> Membership::announcement(int64_t number, const Slot& slot) {
  const auto text = table_.try_get(announcement_key(number, slot));
  if (!text) return std::nullopt;
  Announcement announcement;
  parse(*text, "announcement", [&](std::istream& words) {
    words >> announcement.progress >> announcement.invitation.after;
    read_items(words, announcement.invitation.slots);
  });
  return announcement;
}

std::optional<Generation> Membership::list(int64_t number) {
  const auto text = table_.try_get(key_of(number, "list"));
  if (!text) return std::nullopt;
  Generation generation{.number = number};
  parse(*text, "list of ranks",
        [&](std::istream& words) { read_items(words, generation.members); });
  return generation;
}

std::optional<Generation> Membership::agree(int64_t number, const Announcement& own) {
  const auto claim_key = key_of(number, "claim");
  std::ostringstream own_name;
  own_name << liveness_.own();
  while (true) {
    if (auto agreed = list(number)) return agreed;
    if (const auto text = table_.try_get(claim_key)) {
      Slot claimer;
      parse(*text, "rank", [&](std::istream& words) { words >> claimer; });
      // Its last write may have arrived after the check above.
      if (claimer != liveness_.own() && liveness_.is_lost(claimer)) return list(number);
    } else if (!own.progress.is_new()) {  // a new rank does not know the members
      const auto members = complete(number);
      if (members && table_.claim(claim_key, own_name.str()) == own_name.str()) {
        write_list(number, *members);
        continue;
      }
    } else if (liveness_.lost_among(expected_).size() == expected_.size()) {
      return Generation{.number = number};  // no member is left to write it
    }
    table_.wait_for(key_of(number, "list"), kSlice);
  }
}

// The members of the list, once all have announced themselves.
std::optional<std::vector<Member>> Membership::complete(int64_t number) {
  std::set<Slot> asked(expected_.begin(), expected_.end());
  std::vector<Slot> open(asked.begin(), asked.end());
  std::vector<Member> members;
  while (!open.empty()) {
    const auto gone = liveness_.lost_among(open);
    std::vector<Slot> further;  // invited by some of the others only
    for (const auto& slot : open) {
      if (std::find(gone.begin(), gone.end(), slot) != gone.end()) continue;
      const auto said = announcement(number, slot);
      if (!said) return std::nullopt;
      members.push_back({slot, said->progress});
      for (const auto& guest : said->invitation.slots) {
        if (asked.insert(guest).second) further.push_back(guest);
      }
    }
    open = std::move(further);
  }
  // A member must have the result of the call that invited them.
  int64_t known = 0;
  for (const auto& member : members) {
    if (!member.progress.is_new()) known = std::max(known, member.progress.finished);
  }
  std::erase_if(members, [&](const Member& member) {
    return member.progress.is_new() && member.progress.invited_after > known;
  });
  std::sort(members.begin(), members.end(),
            [](const Member& a, const Member& b) { return a.slot < b.slot; });
  return members;
}

void Membership::write_list(int64_t number, const std::vector<Member>& members) {
  std::ostringstream text;
  write(text, members);
  table_.set(key_of(number, "list"), text.str());
  table_.set("last", format("{}", number));
}

bool Membership::pass_barrier(const Generation& generation) {
  const auto all = key_of(generation.number, "all");
  const auto count = table_.add(key_of(generation.number, "arrived"), 1);
  if (count == static_cast<int64_t>(generation.members.size())) table_.set(all, "1");
  while (!table_.wait_for(all, kSlice)) {
    if (has_begun(generation.number + 1)) return false;
    if (!liveness_.lost_among(generation.slots()).empty()) {
      return table_.try_get(all).has_value();
    }
  }
  return true;
}

Generation Membership::read(int64_t number) {
  const auto found = list(number);
  if (found) return *found;
  throw Error("elastic",
              format("the store names generation {} and has no list of its members", number),
              "something else writes to the job's store: give the job another port and a job key");
}

Generation Membership::last() { return read(number_in(table_.get("last"), "generation")); }

void Membership::request_join() {
  table_.set(format("asks/{}", liveness_.own().rank), format("{}", liveness_.own().incarnation));
}

std::vector<Slot> Membership::join_requests(const std::vector<int>& ranks) {
  std::vector<Slot> slots;
  for (const int rank : ranks) {
    const auto incarnation = table_.try_get(format("asks/{}", rank));
    if (incarnation) slots.push_back({rank, number_in(*incarnation, "process")});
  }
  const auto gone = liveness_.lost_among(slots);
  std::erase_if(slots, [&](const Slot& slot) {
    return std::find(gone.begin(), gone.end(), slot) != gone.end();
  });
  return slots;
}

void Membership::invite(int64_t number, const Invitation& invitation) {
  for (const auto& slot : invitation.slots) {
    table_.set(format("invited/{}/{}", slot.rank, slot.incarnation),
               format("{} {}", number, invitation.after));
  }
}

std::optional<Invitation> Membership::invitation() {
  const auto key = format("invited/{}/{}", liveness_.own().rank, liveness_.own().incarnation);
  const auto text = table_.try_get(key);
  if (!text) return std::nullopt;
  table_.remove(key);
  Invitation invitation{.slots = {liveness_.own()}};
  int64_t number = 0;
  parse(*text, "invitation", [&](std::istream& words) { words >> number >> invitation.after; });
  current_ = {.number = number - 1};
  expected_ = last().slots();
  return invitation;
}

}  // namespace fleet::comm
