// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/network_address.h"

#include <unistd.h>

#include <gtest/gtest.h>

#include "fleet/comm/rendezvous/store/store.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;
using testing::error_message_of;

TEST(NetworkAddressTest, NameThatDoesNotResolveIsAnErrorAtOnce) {
  // An hour would be the limit of a wait.
  const auto text = error_message_of([] { Store::connect("no-such-host.invalid", 29500, 3600s); });
  EXPECT_TRUE(says(text, "the name 'no-such-host.invalid' does not resolve to an address (", "name",
                   "fix: check its spelling in MASTER_ADDR, --master or --ips"));
  EXPECT_EQ(text.find("no route"), text.npos);
  EXPECT_TRUE(
      says(error_message_of([] { Store::host(0, 1s, "a\x1b[2Jb"); }), "the name 'a\\x1b[2Jb'"));
}

TEST(NetworkAddressTest, KnowsTheLoopback) {
  EXPECT_TRUE(resolve("127.0.0.1", 1).front().is_loopback());
  EXPECT_TRUE(resolve("127.1.2.3", 1).front().is_loopback());
  EXPECT_TRUE(resolve("::1", 1).front().is_loopback());
  EXPECT_FALSE(resolve("10.0.0.1", 1).front().is_loopback());
  EXPECT_EQ(address_towards("127.0.0.1", 1), "127.0.0.1");
}

TEST(NetworkAddressTest, AStoreListensAtTheMastersAddressOnly) {
  const auto place = bind_address("127.0.0.5", /*from_elsewhere=*/false);
  EXPECT_EQ(place.address, "127.0.0.5");
  EXPECT_EQ(place.warning, "");
  const auto store = Store::host(0, 1s, place.address);
  EXPECT_FALSE(connect_to(resolve("127.0.0.1", store.port()).front(), 1s).socket)
      << "another address of this machine";
  EXPECT_TRUE(connect_to(resolve("127.0.0.5", store.port()).front(), 1s).socket);
}

TEST(NetworkAddressTest, WarnsOfAMasterThatOtherMachinesCannotReach) {
  const auto loopback = bind_address("127.0.0.1", /*from_elsewhere=*/true);
  EXPECT_EQ(loopback.address, "0.0.0.0");
  EXPECT_TRUE(says(loopback.warning, "other machines cannot reach 127.0.0.1",
                   "the store listens at every address"));
  const auto named = bind_address("localhost", /*from_elsewhere=*/true);
  EXPECT_TRUE(says(named.warning, "localhost is ", " here (see /etc/hosts)"));
  const auto foreign = bind_address("203.0.113.7", /*from_elsewhere=*/true);
  EXPECT_EQ(foreign.address, "0.0.0.0");
  EXPECT_TRUE(says(foreign.warning, "203.0.113.7 is not an address of this machine"));
}

}  // namespace
}  // namespace fleet::comm
