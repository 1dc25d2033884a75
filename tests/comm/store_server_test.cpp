// SPDX-License-Identifier: Apache-2.0
// What a client without the job's key can do to a store.

#define FMT_HEADER_ONLY 1
#include "fleet/comm/rendezvous/store/store_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fleet/comm/rendezvous/network_address.h"
#include "fleet/comm/rendezvous/store/job_key.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/rendezvous/store/store_table.h"
#include "fleet/comm/rendezvous/store/store_wire.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;
using testing::error_message_of;
using wire::Op;
using wire::Side;
using wire::Writer;

constexpr auto kKey = "0123456789abcdef0123456789abcdef";
constexpr auto kOther = "fedcba9876543210fedcba9876543210";

/// A connection that says what it likes.
class Stranger {
 public:
  explicit Stranger(uint16_t port)
      : socket_(connect_to(resolve("127.0.0.1", port).front(), 5s).socket) {
    EXPECT_TRUE(socket_);
  }

  void say(const std::string& bytes) const {
    // A server that has closed may refuse the rest.
    [[maybe_unused]] const auto sent =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  /// So many bytes, or what has come until the server closed.
  std::string hear(size_t count) const {
    std::string heard;
    while (heard.size() < count) {
      pollfd readable{socket_.get(), POLLIN, 0};
      if (::poll(&readable, 1, 20'000) != 1) return heard + " and then silence";
      char byte = 0;
      if (::recv(socket_.get(), &byte, 1, 0) != 1) break;
      heard.push_back(byte);
    }
    return heard;
  }
  bool is_closed() const { return hear(1).empty(); }

  /// Up to the proof that it owes.
  wire::Nonces greet() const {
    wire::Nonces nonces{.client = random_bytes(wire::kNonceBytes), .server = {}};
    say(std::string(wire::kMagic) + nonces.client);
    nonces.server =
        hear(wire::kHelloBytes + wire::kProofBytes).substr(wire::kMagic.size(), wire::kNonceBytes);
    return nonces;
  }

 private:
  Descriptor socket_;
};

class StoreServerTest : public ::testing::Test {
 protected:
  StoreServerTest() { store_.set("secret", "value"); }

  /// What every attack has to leave behind.
  void expect_untouched() {
    EXPECT_EQ(store_.get("secret"), "value");
    EXPECT_EQ(store_.try_get("new"), std::nullopt);
    EXPECT_EQ(store_.raw()->getNumKeys(), 1);
  }

  Store store_ = Store::host(0, 5s, "127.0.0.1", kKey);
};

TEST_F(StoreServerTest, TheRightKeyReadsAndWrites) {
  auto peer = Store::connect("127.0.0.1", store_.port(), 5s, kKey);
  EXPECT_EQ(peer.get("secret"), "value");
  peer.set("secret", "other");
  EXPECT_EQ(store_.get("secret"), "other");
  EXPECT_EQ(peer.duplicate().get("secret"), "other");
}

TEST_F(StoreServerTest, AnotherKeyIsAnErrorAtOnce) {
  const std::string port = std::to_string(store_.port());
  EXPECT_TRUE(
      says(error_message_of([&] { Store::connect("127.0.0.1", store_.port(), 3600s, kOther); }),
           "the store at 127.0.0.1:" + port +
               " is another job's, or has another job key than this "
               "process (FLEET_JOB_KEY)",
           "fix: give all nodes the same key (FLEET_JOB_KEY, or fleetrun --job_key_file)"));
  EXPECT_TRUE(says(error_message_of([&] { Store::connect("127.0.0.1", store_.port(), 3600s); }),
                   "(which has none)"));
  expect_untouched();
}

TEST_F(StoreServerTest, AProofWithAnotherKeyEndsTheConnectionAndIsLogged) {
  ::testing::internal::CaptureStderr();
  {
    const Stranger stranger(store_.port());
    const auto nonces = stranger.greet();
    wire::Channel channel(kOther, Side::kClient, nonces);
    stranger.say(wire::proof(kOther, Side::kClient, nonces) +
                 channel.seal(Writer(Op::kSet).text("new").text("x").take()));
    EXPECT_TRUE(stranger.is_closed());
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "[store] warning: closed a connection from 127.0.0.1: it does not have the job's "
            "key\n");
  expect_untouched();
}

TEST_F(StoreServerTest, RequestsWithoutAnyProofAreNotRead) {
  const auto request = Writer(Op::kSet).text("new").text("x").take();
  {
    const Stranger stranger(store_.port());
    stranger.say(request);
    EXPECT_TRUE(stranger.is_closed()) << "another protocol";
  }
  const Stranger stranger(store_.port());
  const auto nonces = stranger.greet();
  stranger.say(std::string(wire::kProofBytes, '\0') + request);
  EXPECT_TRUE(stranger.is_closed());
  expect_untouched();
}

TEST_F(StoreServerTest, TorchsOwnClientsAreToldApart) {
  ::testing::internal::CaptureStderr();
  const Stranger stranger(store_.port());
  stranger.say(std::string("\0\xce\xf7\x85\x3c", 5));  // TCPStore's VALIDATE
  EXPECT_TRUE(stranger.is_closed());
  EXPECT_TRUE(says(::testing::internal::GetCapturedStderr(), "it uses another protocol"));
  expect_untouched();
}

TEST_F(StoreServerTest, ARecordedConnectionCannotBeRepeated) {
  std::string recorded;
  {
    const Stranger rank(store_.port());  // one that has the key
    const auto nonces = rank.greet();
    recorded = wire::proof(kKey, Side::kClient, nonces);
    wire::Channel channel(kKey, Side::kClient, nonces);
    recorded += channel.seal(Writer(Op::kAdd).text("new").number(1).take());
    rank.say(recorded);
    EXPECT_FALSE(rank.hear(1).empty()) << "it is answered";
    store_.remove("new");
  }
  const Stranger stranger(store_.port());
  stranger.greet();
  stranger.say(recorded);
  EXPECT_TRUE(stranger.is_closed());
  expect_untouched();
}

TEST_F(StoreServerTest, ChangedRepeatedAndForgedMessagesEndTheConnection) {
  enum class Attack { kChanged, kRepeated, kForged };
  for (const auto attack : {Attack::kChanged, Attack::kRepeated, Attack::kForged}) {
    const Stranger rank(store_.port());
    const auto nonces = rank.greet();
    rank.say(wire::proof(kKey, Side::kClient, nonces));
    wire::Channel channel(kKey, Side::kClient, nonces);
    const auto question = channel.seal(Writer(Op::kCheck).texts({"secret"}).take());
    rank.say(question);
    rank.hear(4 + 1 + 16);
    auto request = channel.seal(Writer(Op::kSet).text("new").text("x").take());
    if (attack == Attack::kChanged) request[12] ^= 1;
    if (attack == Attack::kRepeated) request = question;
    if (attack == Attack::kForged) request.replace(request.size() - 16, 16, 16, 'x');
    rank.say(request);
    EXPECT_TRUE(rank.is_closed());
    expect_untouched();
  }
}

TEST_F(StoreServerTest, MessagesThatArePromisedTooLongAreNotWaitedFor) {
  const Stranger rank(store_.port());
  const auto nonces = rank.greet();
  rank.say(wire::proof(kKey, Side::kClient, nonces) + "\xff\xff\xff\xff");
  EXPECT_TRUE(rank.is_closed());
  expect_untouched();
}

TEST_F(StoreServerTest, IdleConnectionsBlockNoClientAndAreNotLogged) {
  ::testing::internal::CaptureStderr();
  {
    std::vector<std::unique_ptr<Stranger>> silent;
    for (int i = 0; i < 20; ++i) silent.push_back(std::make_unique<Stranger>(store_.port()));
    EXPECT_EQ(Store::connect("127.0.0.1", store_.port(), 5s, kKey).get("secret"), "value");
  }
  expect_untouched();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(StoreServerTest, AClientIsNotDeceivedByAServerWithoutTheKey) {
  const Store deceiver = Store::host(0, 5s, "127.0.0.1", kOther);
  EXPECT_TRUE(
      says(error_message_of([&] { Store::connect("127.0.0.1", deceiver.port(), 5s, kKey); }),
           "another job key than this process"));
}

// Whatever bytes a request is made of, the table answers or throws what ends the connection.
TEST(StoreTableTest, SurvivesEveryShortenedAndChangedRequest) {
  const std::vector<std::string> requests = {
      Writer(Op::kSet).text("key").text("value").take(),
      Writer(Op::kGet).number(5).texts({"a", "b"}).take(),
      Writer(Op::kAdd).text("count").number(3).take(),
      Writer(Op::kCompareSet).text("key").text("").text("x").take(),
      Writer(Op::kMultiSet).texts({"a", "b"}).texts({"1", "2"}).take(),
      Writer(Op::kAppend).text("key").text("more").take()};
  StoreTable table;
  const auto survive = [&](const std::string& request) {
    try {
      table.handle(request);
    } catch (const std::invalid_argument&) {  // NOLINT: as promised
    }
  };
  for (const auto& request : requests) {
    for (size_t length = 0; length < request.size(); ++length) survive(request.substr(0, length));
    for (size_t at = 0; at < request.size(); ++at) {
      for (const int bits : {0x01, 0x80, 0xff}) {
        auto changed = request;
        changed[at] = static_cast<char>(changed[at] ^ bits);
        survive(changed);
      }
    }
  }
}

TEST(StoreTableTest, CountsAndComparesAsC10d) {
  auto ours = Store::host(0, 5s);
  auto theirs = Store::in_memory();
  for (auto* store : {&ours, &theirs}) {
    EXPECT_EQ(store->add("count", 2), 2);
    EXPECT_EQ(store->add("count", -5), -3);
    EXPECT_EQ(store->get("count"), "-3");
    EXPECT_EQ(store->claim("place", "mine"), "mine");
    EXPECT_EQ(store->claim("place", "yours"), "mine");
    EXPECT_EQ(store->raw()->compareSet("place", "mine", "yours"), "yours");
    EXPECT_EQ(store->raw()->compareSet("absent", "expected", "x"), "expected");
    EXPECT_EQ(store->try_get("absent"), std::nullopt);
    EXPECT_TRUE(store->raw()->deleteKey("place"));
    EXPECT_FALSE(store->raw()->deleteKey("place"));
    store->raw()->multiSet({"a", "b"}, {{1}, {2, 3}});
    store->raw()->append("a", {4});
    EXPECT_EQ(store->raw()->multiGet({"b", "a"}),
              (std::vector<std::vector<uint8_t>>{{2, 3}, {1, 4}}));
  }
}

}  // namespace
}  // namespace fleet::comm
