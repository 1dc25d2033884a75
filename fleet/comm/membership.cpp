#include "fleet/comm/membership.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{20};  // between two looks at who is gone

std::string key_of(int64_t number, std::string_view what) {
  return format("generation/{}/{}", number, what);
}
std::string here_key(int64_t number, const Seat& seat) {
  return key_of(number, format("here/{}/{}", seat.rank, seat.life));
}

std::ostream& operator<<(std::ostream& out, const Seat& seat) {
  return out << seat.rank << ' ' << seat.life << ' ';
}
std::istream& operator>>(std::istream& in, Seat& seat) { return in >> seat.rank >> seat.life; }

std::ostream& operator<<(std::ostream& out, const Standing& standing) {
  return out << standing.finished << ' ' << standing.finished_in << ' ' << standing.invited_after
             << ' ';
}
std::istream& operator>>(std::istream& in, Standing& standing) {
  return in >> standing.finished >> standing.finished_in >> standing.invited_after;
}

std::ostream& operator<<(std::ostream& out, const Member& member) {
  return out << member.seat << member.standing;
}
std::istream& operator>>(std::istream& in, Member& member) {
  return in >> member.seat >> member.standing;
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
  items.resize(count);
  for (auto& item : items) in >> item;
}

}  // namespace

std::vector<int> Generation::ranks() const {
  std::vector<int> ranks;
  for (const auto& member : members) ranks.push_back(member.seat.rank);
  return ranks;
}

std::vector<Seat> Generation::seats() const {
  std::vector<Seat> seats;
  for (const auto& member : members) seats.push_back(member.seat);
  return seats;
}

std::optional<int> Generation::index_of(int rank) const {
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].seat.rank == rank) return static_cast<int>(i);
  }
  return std::nullopt;
}

int64_t Generation::most_finished() const {
  int64_t most = 0;
  for (const auto& member : members) most = std::max(most, member.standing.finished);
  return most;
}

std::optional<int> Generation::first_old() const {
  for (const auto& member : members) {
    if (!member.standing.is_new()) return member.seat.rank;
  }
  return std::nullopt;
}

Membership::Membership(Store store, Liveness& liveness)
    : table_(store.prefixed("membership")), liveness_(liveness) {}

bool Membership::is_founded() { return table_.try_get("last").has_value(); }

Generation Membership::found(int size, milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + limit;
  std::string missing;
  for (int rank = 0; rank < size; ++rank) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const auto seat = liveness_.seat_of(rank, std::max(left, milliseconds(1)));
    if (seat) {
      expected_.push_back(*seat);
    } else {
      missing += format(" {}", rank);
    }
  }
  if (!missing.empty()) {
    throw Error(
        "elastic",
        format("rank {} waited {:.0f} s for {} ranks, and these did not come:{}",
               liveness_.own().rank, static_cast<double>(limit.count()) / 1e3, size, missing),
        "see whether they were started, and whether they died before fleet::init()");
  }
  const auto generation = next({}, {});
  if (generation) return *generation;
  throw Error("elastic",
              format("rank {} came when the others had begun without it", liveness_.own().rank));
}

std::optional<Generation> Membership::next(const Standing& own, const Invitation& invitation) {
  for (int64_t number = current_.number + 1;; ++number) {
    announce(number, {own, invitation});
    invite(number, invitation);
    const auto agreed = agree(number, {own, invitation});
    if (!agreed) continue;
    expected_ = agreed->seats();
    const auto index = agreed->index_of(liveness_.own().rank);
    const bool is_on_it =
        index && agreed->members[static_cast<size_t>(*index)].seat == liveness_.own();
    if (!is_on_it) return std::nullopt;
    if (!meet(*agreed)) continue;
    current_ = *agreed;
    return current_;
  }
}

bool Membership::has_begun(int64_t number) {
  return table_.try_get(key_of(number, "begun")).has_value();
}

void Membership::announce(int64_t number, const Announcement& own) {
  std::ostringstream text;
  text << own.standing << own.invitation.after << ' ';
  write(text, own.invitation.seats);
  table_.set(here_key(number, liveness_.own()), text.str());
  table_.set(key_of(number, "begun"), "1");
}

std::optional<Membership::Announcement> Membership::announcement(int64_t number, const Seat& seat) {
  const auto text = table_.try_get(here_key(number, seat));
  if (!text) return std::nullopt;
  std::istringstream words(*text);
  Announcement announcement;
  words >> announcement.standing >> announcement.invitation.after;
  read_items(words, announcement.invitation.seats);
  return announcement;
}

std::optional<Generation> Membership::list(int64_t number) {
  const auto text = table_.try_get(key_of(number, "list"));
  if (!text) return std::nullopt;
  Generation generation{.number = number};
  std::istringstream words(*text);
  read_items(words, generation.members);
  return generation;
}

std::optional<Generation> Membership::agree(int64_t number, const Announcement& own) {
  const auto claim_key = key_of(number, "claim");
  std::ostringstream own_name;
  own_name << liveness_.own();
  while (true) {
    if (auto agreed = list(number)) return agreed;
    if (const auto text = table_.try_get(claim_key)) {
      Seat claimer;
      std::istringstream words(*text);
      words >> claimer;
      // What it wrote with its last breath may have come in after the look above.
      if (claimer != liveness_.own() && liveness_.is_gone(claimer)) return list(number);
    } else if (!own.standing.is_new()) {  // who is new does not know whom to expect
      const auto members = complete(number);
      if (members && table_.claim(claim_key, own_name.str()) == own_name.str()) {
        write_list(number, *members);
        continue;
      }
    } else if (liveness_.gone_among(expected_).size() == expected_.size()) {
      return Generation{.number = number};  // nobody is left who could write it
    }
    table_.wait_for(key_of(number, "list"), kSlice);
  }
}

// Those who will be on the list, once nobody is missing.
std::optional<std::vector<Member>> Membership::complete(int64_t number) {
  std::set<Seat> asked(expected_.begin(), expected_.end());
  std::vector<Seat> open(asked.begin(), asked.end());
  std::vector<Member> members;
  while (!open.empty()) {
    const auto gone = liveness_.gone_among(open);
    std::vector<Seat> further;  // whom only some of the others have invited
    for (const auto& seat : open) {
      if (std::find(gone.begin(), gone.end(), seat) != gone.end()) continue;
      const auto said = announcement(number, seat);
      if (!said) return std::nullopt;
      members.push_back({seat, said->standing});
      for (const auto& guest : said->invitation.seats) {
        if (asked.insert(guest).second) further.push_back(guest);
      }
    }
    open = std::move(further);
  }
  // Somebody has to know what the call said by which they were invited.
  int64_t known = 0;
  for (const auto& member : members) {
    if (!member.standing.is_new()) known = std::max(known, member.standing.finished);
  }
  std::erase_if(members, [&](const Member& member) {
    return member.standing.is_new() && member.standing.invited_after > known;
  });
  std::sort(members.begin(), members.end(),
            [](const Member& a, const Member& b) { return a.seat < b.seat; });
  return members;
}

void Membership::write_list(int64_t number, const std::vector<Member>& members) {
  std::ostringstream text;
  write(text, members);
  table_.set(key_of(number, "list"), text.str());
  table_.set("last", format("{}", number));
}

bool Membership::meet(const Generation& generation) {
  const auto all = key_of(generation.number, "all");
  const auto count = table_.add(key_of(generation.number, "come"), 1);
  if (count == static_cast<int64_t>(generation.members.size())) table_.set(all, "1");
  while (!table_.wait_for(all, kSlice)) {
    if (has_begun(generation.number + 1)) return false;
    if (!liveness_.gone_among(generation.seats()).empty()) {
      return table_.try_get(all).has_value();
    }
  }
  return true;
}

Generation Membership::read(int64_t number) {
  const auto found = list(number);
  FLEET_ASSERT(found.has_value(), "a generation that was agreed on has its list");
  return *found;
}

Generation Membership::last() { return read(std::stoll(table_.get("last"))); }

void Membership::ask() {
  table_.set(format("asks/{}", liveness_.own().rank), format("{}", liveness_.own().life));
}

std::vector<Seat> Membership::asking(const std::vector<int>& ranks) {
  std::vector<Seat> seats;
  for (const int rank : ranks) {
    const auto life = table_.try_get(format("asks/{}", rank));
    if (life) seats.push_back({rank, std::stoll(*life)});
  }
  const auto gone = liveness_.gone_among(seats);
  std::erase_if(seats, [&](const Seat& seat) {
    return std::find(gone.begin(), gone.end(), seat) != gone.end();
  });
  return seats;
}

void Membership::invite(int64_t number, const Invitation& invitation) {
  for (const auto& seat : invitation.seats) {
    table_.set(format("invited/{}/{}", seat.rank, seat.life),
               format("{} {}", number, invitation.after));
  }
}

std::optional<Invitation> Membership::invited() {
  const auto key = format("invited/{}/{}", liveness_.own().rank, liveness_.own().life);
  const auto text = table_.try_get(key);
  if (!text) return std::nullopt;
  table_.remove(key);
  Invitation invitation{.seats = {liveness_.own()}};
  int64_t number = 0;
  std::istringstream(*text) >> number >> invitation.after;
  current_ = {.number = number - 1};
  expected_ = last().seats();
  return invitation;
}

}  // namespace fleet::comm
