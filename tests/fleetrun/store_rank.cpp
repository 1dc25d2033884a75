// SPDX-License-Identifier: Apache-2.0
// A rank for FleetrunTest.StoreOutlivesRankZero: rank 0 leaves a word in the launcher's store and
// ends, rank 1 reads it afterwards.

#include <unistd.h>

#include <cstdio>

#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/role_maker.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/support/launched.h"

namespace {

int run_rank(int, char**) {
  const auto role = fleet::RoleMaker::from_environment();
  auto store =
      fleet::comm::Store::connect(role.master_address, static_cast<uint16_t>(role.master_port),
                                  std::chrono::seconds(10), role.job_key);
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
