// SPDX-License-Identifier: Apache-2.0
// What ranks read from the store. The first byte says which message the rest is.

#include <cstdlib>

#include "fleet/comm/elastic/membership.h"
#include "fleet/comm/rendezvous/peer_watch.h"

#include "fuzz/target.h"

namespace fleet::fuzz {
namespace {

using namespace std::chrono_literals;
using comm::Generation;
using comm::Liveness;
using comm::Membership;
using comm::Slot;
using comm::Store;

/// A table in which somebody else has written.
struct Job {
  Job() : liveness(store, /*rank=*/0, 60s), membership(store, liveness) {}

  void set(const std::string& key, std::string_view text) { store.set(key, text); }
  /// A process of rank `rank` that is on another machine, so that nothing is known of it.
  void slot(int rank, int64_t incarnation) {
    set("liveness/who/" + std::to_string(rank) + "/" + std::to_string(incarnation),
        "elsewhere\n1 1");
  }

  Store store = Store::in_memory(1ms);
  Liveness liveness;
  Membership membership;
};

void check(const Generation& generation, std::string_view text) {
  require(2 * generation.members.size() <= text.size(), "a member takes room in the text");
  for (const auto& member : generation.members)
    require(member.slot.rank >= 0 && member.slot.incarnation >= 0,
            "a member is a process of a rank");
}

void list(std::string_view text) {
  Job job;
  job.set("membership/generation/3/list", text);
  job.set("membership/last", "3");
  accepts([&] {
    const auto generation = job.membership.last();
    require(generation.number == 3, "it is the one that was asked for");
    check(generation, text);
  });
}

void last(std::string_view text) {
  Job job;
  job.set("membership/last", text);
  job.set("membership/generation/3/list", "2 0 1 5 2 0 1 1 5 2 0 ");
  accepts([&] { require(job.membership.last().number == 3, "there is only this one"); });
}

void asks(std::string_view text) {
  Job job;
  job.set("membership/asks/1", text);
  job.slot(1, std::strtoll(std::string(text).c_str(), nullptr, 10));
  accepts([&] {
    for (const auto& slot : job.membership.join_requests({1, 2}))
      require(slot.rank == 1, "who asks is a process of that rank");
  });
}

void invited(std::string_view text) {
  Job job;
  const auto incarnation = std::to_string(job.liveness.own().incarnation);
  job.set("membership/invited/0/" + incarnation, text);
  job.set("membership/last", "3");
  job.set("membership/generation/3/list", "1 1 1 5 2 0 ");
  accepts([&] {
    const auto invitation = job.membership.invitation();
    require(invitation && invitation->slots.size() == 1, "it is this rank's own");
  });
}

void who(std::string_view text) {
  Job job;
  job.set("liveness/who/1/1", text);
  accepts([&] { job.liveness.is_lost(Slot{.rank = 1, .incarnation = 1}); });
}

void heartbeat(std::string_view text) {
  auto store = Store::in_memory(1ms);
  store.set("watch/heartbeat/1", text);
  accepts([&] {
    require(comm::PeerWatch::heartbeat_of(store, 1).has_value(), "a heartbeat has a number");
  });
}

void run(Bytes bytes) {
  if (bytes.empty()) return;
  constexpr void (*kReaders[])(std::string_view) = {list, last, asks, invited, who, heartbeat};
  kReaders[bytes[0] % std::size(kReaders)](text_of(bytes.subspan(1)));
}

const Target target("store_messages", run);

}  // namespace
}  // namespace fleet::fuzz
