// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fleet/comm/elastic/liveness.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/rendezvous/wait_notice.h"

namespace fleet::comm {

/// How far a rank has come, as it announces for a new generation.
struct MemberProgress {
  int64_t finished = 0;       // completed calls
  int64_t finished_in = 0;    // the generation in which it completed the last of them
  int64_t invited_after = 0;  // above 0: admitted after that call, without training state so far

  bool is_new() const { return invited_after > 0; }
};

struct Member {
  Slot slot;
  MemberProgress progress;
};

/// The members of a group, until one of them is lost or another one joins.
struct Generation {
  int64_t number = -1;
  std::vector<Member> members = {};  // by rank

  std::vector<int> ranks() const;
  std::vector<Slot> slots() const;
  /// The index of `rank` among the members; nothing when it is none.
  std::optional<int> index_of(int rank) const;
  /// Calls that at least one member has completed.
  int64_t most_finished() const;
  /// The lowest rank that is not new; nothing when all are.
  std::optional<int> first_old() const;
};

/// Ranks that the members have agreed to admit after their call number `after`.
struct Invitation {
  int64_t after = 0;
  std::vector<Slot> slots = {};
};

/// Agrees on generations through the store, while ranks may be lost at any moment.
///
/// A member that detects a lost one begins the next generation: every remaining rank announces its
/// progress; the first that sees all announcements claims the list of members and writes it; all
/// ranks on the list pass a barrier. When the claimer is lost before it has written, or a member
/// before the barrier, the next generation begins. A generation is void as soon as any rank has
/// begun the next one, so a stale list is never used.
///
///   Membership membership(store, liveness);
///   auto generation = membership.form(4, 60s);
///   ... a member is lost ...
///   generation = membership.next(progress, {});
class Membership {
 public:
  Membership(Store store, Liveness& liveness);

  /// Whether a first generation has been agreed on: later processes need an invitation.
  bool has_formed();
  /// The first generation, of all `size` ranks; an Error names those that did not arrive in time.
  Generation form(int size, std::chrono::milliseconds limit,
                  std::chrono::milliseconds notice_every = WaitNotice::kEvery);

  /// The generation after this rank's last one, with its remaining members and the invited ranks.
  /// Nothing when this rank is not on the list: it was declared lost, or the ranks that invited it
  /// are lost themselves.
  std::optional<Generation> next(const MemberProgress& own, const Invitation& invitation);

  /// Whether a rank has begun another generation.
  bool is_over() { return has_begun(current_.number + 1); }
  const Generation& current() const { return current_; }
  /// A generation that was agreed on.
  Generation read(int64_t number);
  /// The last one that was agreed on.
  Generation last();

  /// Asks to join; `invited` returns the invitation, once there is one.
  void request_join();
  std::optional<Invitation> invitation();
  /// The processes of `ranks` that ask to join.
  std::vector<Slot> join_requests(const std::vector<int>& ranks);

 private:
  struct Announcement {
    MemberProgress progress;
    Invitation invitation;
  };

  /// Of these ranks, those that have not arrived; the slots of the others are expected from now on.
  std::vector<int> find_slots(std::vector<int> ranks);
  bool has_begun(int64_t number);
  void announce(int64_t number, const Announcement& own);
  std::optional<Announcement> announcement(int64_t number, const Slot& slot);
  std::optional<Generation> agree(int64_t number, const Announcement& own);
  std::optional<Generation> list(int64_t number);
  std::optional<std::vector<Member>> complete(int64_t number);
  void write_list(int64_t number, const std::vector<Member>& members);
  bool pass_barrier(const Generation& generation);
  void invite(int64_t number, const Invitation& invitation);

  Store table_;
  Liveness& liveness_;
  Generation current_;
  std::vector<Slot> expected_;  // must announce themselves, or be lost
};

}  // namespace fleet::comm
