#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fleet/comm/liveness.h"
#include "fleet/comm/store.h"

namespace fleet::comm {

/// How far a rank is, as it says when a new generation is agreed on.
struct Standing {
  int64_t finished = 0;       // calls
  int64_t finished_in = 0;    // the generation in which it finished the last of them
  int64_t invited_after = 0;  // above 0: it has just come, after that call, and knows nothing yet

  bool is_new() const { return invited_after > 0; }
};

struct Member {
  Seat seat;
  Standing standing;
};

/// The ranks that make calls together, until one of them is gone or another one comes.
struct Generation {
  int64_t number = -1;
  std::vector<Member> members = {};  // by rank

  std::vector<int> ranks() const;
  std::vector<Seat> seats() const;
  /// Where `rank` stands among the members; nothing when it is none.
  std::optional<int> index_of(int rank) const;
  /// Calls that somebody has finished.
  int64_t most_finished() const;
  /// The lowest rank that is not new; nothing when all are.
  std::optional<int> first_old() const;
};

/// Ranks that members have agreed to let in, after their call number `after`.
struct Invitation {
  int64_t after = 0;
  std::vector<Seat> seats = {};
};

/// Agrees on generations in the store, while ranks may die at any moment.
///
/// Whoever sees that a member is gone begins the next generation: all who are not gone announce
/// themselves with their standing, the first who sees them complete claims the list and writes it,
/// and all on it meet. When the claimer dies before it has written, or a member before it has come
/// to the meeting, the next generation is begun. A list that nobody uses any more cannot be taken
/// for the last one: it is void as soon as anybody has begun the next.
///
///   Membership membership(store, liveness);
///   auto generation = membership.found(4, 60s);
///   ... a member is gone ...
///   generation = membership.next(standing, {});
class Membership {
 public:
  Membership(Store store, Liveness& liveness);

  /// Whether a first generation has been agreed on: a process that comes later has to be invited.
  bool is_founded();
  /// The first generation, of all `size` ranks; an Error names those that did not come in time.
  Generation found(int size, std::chrono::milliseconds limit);

  /// The generation after the last one that this rank was in, with all its members that are not
  /// gone, and those who are invited. Nothing when this rank is not on its list: it was taken for
  /// gone, or those who invited it are gone themselves.
  std::optional<Generation> next(const Standing& own, const Invitation& invitation);

  /// Whether somebody has begun another generation.
  bool is_over() { return has_begun(current_.number + 1); }
  const Generation& current() const { return current_; }
  /// Of a generation that was agreed on.
  Generation read(int64_t number);
  /// The last one that was agreed on.
  Generation last();

  /// Asks to be let in, and by which generation this process has been; nothing as long as nobody
  /// has invited it.
  void ask();
  std::optional<Invitation> invited();
  /// The processes on `ranks` that ask.
  std::vector<Seat> asking(const std::vector<int>& ranks);

 private:
  struct Announcement {
    Standing standing;
    Invitation invitation;
  };

  bool has_begun(int64_t number);
  void announce(int64_t number, const Announcement& own);
  std::optional<Announcement> announcement(int64_t number, const Seat& seat);
  std::optional<Generation> agree(int64_t number, const Announcement& own);
  std::optional<Generation> list(int64_t number);
  std::optional<std::vector<Member>> complete(int64_t number);
  void write_list(int64_t number, const std::vector<Member>& members);
  bool meet(const Generation& generation);
  void invite(int64_t number, const Invitation& invitation);

  Store table_;
  Liveness& liveness_;
  Generation current_;
  std::vector<Seat> expected_;  // who has to announce itself, or to be gone
};

}  // namespace fleet::comm
