// SPDX-License-Identifier: Apache-2.0
// A rank that uses the launcher's store. For FleetrunTest.StoreOutlivesRankZero: rank 0 leaves a
// word and ends, rank 1 reads it afterwards. With the word "barrier", for
// ResourceLimitsTest.SixtyFourRanksMeetInTheStore: all ranks wait for each other.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string_view>

#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/rendezvous/store_based_barrier.h"
#include "fleet/comm/rendezvous/wait_notice.h"
#include "fleet/comm/role_maker.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/support/launched.h"

namespace {

constexpr auto kPatience = std::chrono::seconds(120);  // 64 programs start one after the other

int meet(const fleet::comm::Store& store, const fleet::RoleMaker& role) {
  fleet::comm::WaitNotice notice("test", kPatience);
  const auto missing =
      fleet::comm::store_based_barrier(store, role.rank, role.world_size, kPatience, notice);
  if (!missing.empty()) return 1;
  std::printf("rank %d has met all %d\n", role.rank, role.world_size);
  return 0;
}

int run_rank(int argc, char** argv) {
  const auto role = fleet::RoleMaker::from_environment();
  auto store = fleet::comm::Store::connect(
      role.master_address, static_cast<uint16_t>(role.master_port), kPatience, role.job_key);
  if (argc > 1 && std::string_view(argv[1]) == "barrier") return meet(store, role);
  if (role.rank == 0) {
    store.set("word", "a word");
    store.set("pid", fleet::format("{}", getpid()));
    return 0;
  }
  const pid_t rank_zero = std::stoi(store.get("pid"));
  if (!fleet::launch::eventually([&] { return fleet::launch::is_gone(rank_zero); })) return 1;
  std::printf("rank 0 has gone, and left: %s\n", store.get("word").c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(run_rank, argc, argv); }
