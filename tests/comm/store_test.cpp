// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/store/store.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"

#include "tests/support/error_of.h"

namespace fleet::comm {
namespace {

using testing::error_message_of;
using namespace std::chrono_literals;

TEST(StoreTest, CarriesKeysBetweenHostAndClients) {
  auto host = Store::host(0, 5s);
  ASSERT_NE(host.port(), 0);
  auto client = Store::connect("127.0.0.1", host.port(), 5s);
  const std::string binary("a\0b", 3);
  client.set("key", binary);
  EXPECT_EQ(host.get("key"), binary);
  EXPECT_EQ(host.add("count", 2), 2);
  EXPECT_EQ(client.add("count", 3), 5);
  EXPECT_EQ(client.try_get("absent"), std::nullopt);
  EXPECT_EQ(client.try_get("key"), binary);
  EXPECT_TRUE(client.wait_for("key", 1s));
  EXPECT_FALSE(client.wait_for("absent", 50ms));
  EXPECT_TRUE(client.wait_for("key", 1s)) << "a wait that ran out must leave the store usable";
}

TEST(StoreTest, PrefixKeepsKeysApart) {
  auto store = Store::in_memory(1s);
  auto inner = store.prefixed("a").prefixed("b");
  inner.set("key", "1");
  EXPECT_EQ(store.get("a/b/key"), "1");
  EXPECT_EQ(store.try_get("key"), std::nullopt);
}

TEST(StoreTest, DuplicateWaitsWithoutBlockingTheOriginal) {
  auto host = Store::host(0, 5s);
  auto client = Store::connect("127.0.0.1", host.port(), 5s);
  std::string seen;
  std::thread waiter([&, own = client.duplicate()]() mutable { seen = own.get("late"); });
  client.set("late", "now");
  waiter.join();
  EXPECT_EQ(seen, "now");
}

TEST(StoreTest, MemoryStoreServesSeveralThreads) {
  auto store = Store::in_memory(5s);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([store, rank]() mutable {
      if (store.add("arrived", 1) == 4) store.set("all", "here");
      EXPECT_EQ(store.get("all"), "here") << rank;
    });
  for (auto& rank : ranks) rank.join();
}

TEST(StoreTest, WaitThatRunsOutNamesKeyAddressAndTime) {
  auto host = Store::host(0, 200ms, "127.0.0.1");
  ::testing::internal::CaptureStderr();
  const auto text = error_message_of([&] { host.get("rank 3"); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_NE(text.find("waited 0.2 s for 'rank 3' in the store at 127.0.0.1:"), text.npos) << text;
  const auto memory = error_message_of([&] { Store::in_memory(100ms).get("x"); });
  EXPECT_NE(memory.find("waited 0.1 s for 'x' in the store at memory"), memory.npos) << memory;
}

TEST(StoreTest, MissingHostIsOneCleanMessage) {
  uint16_t port = 0;
  { port = Store::host(0, 1s).port(); }
  ::testing::internal::CaptureStderr();
  const auto text = error_message_of([&] { Store::connect("127.0.0.1", port, 300ms); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_NE(text.find("nothing answers at 127.0.0.1:"), text.npos) << text;
  EXPECT_NE(text.find("after 0.3 s (Connection refused)"), text.npos) << text;
  EXPECT_NE(text.find("fix: "), text.npos) << text;
}

// Such as a web server, which waits for a line.
TEST(StoreTest, ProgramThatListensAndDoesNotAnswerIsTold) {
  const Descriptor silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(silent.get(), any, size), 0);
  ASSERT_EQ(::listen(silent.get(), 5), 0);
  ASSERT_EQ(::getsockname(silent.get(), any, &size), 0);
  const auto text = error_message_of<StoreUnreachable>(
      [&] { Store::connect("127.0.0.1", ntohs(address.sin_port), 300ms); });
  EXPECT_NE(text.find("(connected, then no answer)"), text.npos) << text;
}

TEST(StoreTest, TakenPortSaysSo) {
  auto first = Store::host(0, 1s);
  const auto text = error_message_of([&] { Store::host(first.port(), 1s); });
  EXPECT_NE(text.find("Address already in use"), text.npos) << text;
}

TEST(StoreTest, HostThatEndsIsReportedAndTheScreenStaysClean) {
  int to_parent[2];
  int to_child[2];
  ASSERT_EQ(pipe(to_parent), 0);
  ASSERT_EQ(pipe(to_child), 0);
  const pid_t host = fork();
  if (host == 0) {
    auto store = Store::host(0, 5s);
    const uint16_t port = store.port();
    char wait = 0;
    if (write(to_parent[1], &port, sizeof(port)) > 0 && read(to_child[0], &wait, 1) > 0) _exit(0);
    _exit(1);
  }
  uint16_t port = 0;
  ASSERT_EQ(read(to_parent[0], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  auto client = Store::connect("127.0.0.1", port, 5s);
  client.set("key", "value");
  ASSERT_EQ(write(to_child[1], "x", 1), 1);
  waitpid(host, nullptr, 0);
  ::testing::internal::CaptureStderr();
  const auto text = error_message_of([&] { client.get("key"); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_NE(text.find("lost the store at 127.0.0.1:"), text.npos) << text;
  EXPECT_EQ(text.find("frame #"), text.npos) << text;
}

}  // namespace
}  // namespace fleet::comm
