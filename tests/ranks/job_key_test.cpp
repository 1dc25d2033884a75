// SPDX-License-Identifier: Apache-2.0
// The secret of a job: who has it, and what happens to those who have not.

#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include <gtest/gtest.h>

#include "fleet/comm/rendezvous/network_address.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/ranks/ranks.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/support/two_hosts.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using fleet::testing::error_message_of;

constexpr auto kPatience = 60s;
constexpr auto kKey = "0123456789abcdef0123456789abcdef";
constexpr auto kOther = "fedcba9876543210fedcba9876543210";

const Words kTellStore = {"sh", "-c", "echo store $FLEET_STORE; exec sleep 120"};

/// The port of the store, once the job's first rank has told it.
uint16_t port_told_by(const Launched& job) {
  EXPECT_TRUE(eventually([&] { return !after(job.log(0), "store").empty(); }, kPatience))
      << job.output();
  const auto place = after(job.log(0), "store");
  return static_cast<uint16_t>(std::stoi(place.substr(place.rfind(':') + 1)));
}

Words as_node(int node, int port, const Words& rest) {
  Words words = {"--nnodes=2", format("--node_rank={}", node),
                 format("--master=127.0.0.1:{}", port), "--join_timeout_s=60"};
  words.insert(words.end(), rest.begin(), rest.end());
  return words;
}

int free_port() { return comm::Store::host(0, 1s).port(); }

TEST(JobKeyTest, AJobOfOneNodeIsClosedToWhoDoesNotHaveItsKey) {
  Launched job(kTellStore);
  const auto port = port_told_by(job);
  EXPECT_TRUE(says(error_message_of([&] { comm::Store::connect("127.0.0.1", port, 5s); }),
                   "is another job's, or has another job key than this process"));
  EXPECT_TRUE(says(error_message_of([&] { comm::Store::connect("127.0.0.1", port, 5s, kOther); }),
                   "is another job's, or has another job key than this process"));
  EXPECT_FALSE(comm::connect_to(comm::resolve("127.0.0.2", port).front(), 5s).socket)
      << "it listens at one address";
  job.send(SIGTERM);
  EXPECT_EQ(job.wait(kPatience), 143) << job.output();
}

TEST(JobKeyTest, AKeyFromTheEnvironmentOpensTheStore) {
  Launched job(kTellStore, with({format("FLEET_JOB_KEY={}", kKey)}));
  auto store = comm::Store::connect("127.0.0.1", port_told_by(job), 5s, kKey);
  store.set("mine/word", "heard");
  EXPECT_EQ(store.get("mine/word"), "heard");
  job.send(SIGTERM);
  EXPECT_EQ(job.wait(kPatience), 143) << job.output();
}

TEST(JobKeyTest, SeveralNodesWithoutAKeyAreRefusedWithWhatToDo) {
  Launched job(as_node(0, free_port(), {"true"}), {"env", "-u", "FLEET_JOB_KEY"});
  EXPECT_EQ(job.wait(kPatience), 2) << job.output();
  EXPECT_TRUE(says(job.output(), "2 nodes need a job key that all of them have",
                   "fix: set the same FLEET_JOB_KEY on every node, or give --job_key_file FILE",
                   "openssl rand -hex 32 > FILE", "--no_job_key starts without one"));
}

TEST(JobKeyTest, NodesMeetByAFile) {
  const TemporaryFolder folder;
  const auto file = (folder.path() / "key").string();
  std::ofstream(file) << kKey << "\n";
  ::chmod(file.c_str(), 0600);
  const int port = free_port();
  const Words work = {"--job_key_file=" + file, "sh", "-c",
                      "echo $RANK $(printenv FLEET_JOB_KEY | cut -c 1-8)"};
  Launched first(as_node(0, port, work)), second(as_node(1, port, work));
  EXPECT_EQ(first.wait(kPatience), 0) << first.output();
  EXPECT_EQ(second.wait(kPatience), 0) << second.output();
  EXPECT_EQ(first.log(0), "0 01234567\n");
  EXPECT_EQ(second.log(1), "1 01234567\n");
  EXPECT_EQ(second.output().find(kKey), std::string::npos) << "fleetrun does not show it";
}

TEST(JobKeyTest, ANodeWithAnotherKeyIsRefusedAtOnce) {
  const int port = free_port();
  Launched first(as_node(0, port, {"true"}), with({format("FLEET_JOB_KEY={}", kKey)}));
  Launched second(as_node(1, port, {"true"}), with({format("FLEET_JOB_KEY={}", kOther)}));
  EXPECT_EQ(second.wait(kPatience - 10s), 1) << second.output();  // before --join_timeout_s
  EXPECT_TRUE(says(second.output(), "has another job key than this process (FLEET_JOB_KEY)",
                   "fix: give all nodes the same key"));
}

TEST(JobKeyTest, GoingWithoutIsPossibleAndSaid) {
  const int port = free_port();
  const auto env = with({"FLEET_JOB_KEY="});
  const Words work = {"--no_job_key", beside("test_rank_program"), "calls"};
  Launched first(as_node(0, port, work), env), second(as_node(1, port, work), env);
  EXPECT_EQ(first.wait(kPatience), 0) << first.output();
  EXPECT_EQ(second.wait(kPatience), 0) << second.output();
  EXPECT_TRUE(says(first.output(), format("[fleetrun] warning: --no_job_key: any host that reaches "
                                          "127.0.0.1:{} can read and change this job",
                                          port)));
}

TEST(JobKeyTest, RanksStartedByHandNeedTheSameKey) {
  const int port = free_port();
  auto own = [&](int rank, const char* key) {
    return by_hand({"WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", format("MASTER_PORT={}", port),
                    format("RANK={}", rank), format("FLEET_JOB_KEY={}", key)},
                   {"calls"});
  };
  {
    Started first(own(0, kKey)), second(own(1, kKey));
    EXPECT_EQ(first.wait(kPatience), 0) << first.output();
    EXPECT_EQ(second.wait(kPatience), 0) << second.output();
  }
  Started first(own(0, kKey)), second(own(1, kOther));
  EXPECT_EQ(second.wait(kPatience), 1) << second.output();
  EXPECT_TRUE(says(error_in(second.output()), "rank 1 cannot reach rank 0, which hosts the store:",
                   "has another job key than this process"));
}

TEST(JobKeyTest, TheStoreOfSeveralNodesListensAtTheMastersAddressOnly) {
  const TwoHosts hosts;
  if (!hosts.refused().empty()) GTEST_SKIP() << hosts.refused();
  Launched first({"--nnodes=2", "--node_rank=0", "--master=10.77.0.1:29515", "true"}, hosts.on(0));
  const auto listening = [&] {
    auto words = hosts.on(0);
    words.insert(words.end(), {"cat", "/proc/net/tcp", "/proc/net/tcp6"});
    Started shown(words);
    shown.wait(kPatience);
    return shown.output();
  };
  // 10.77.0.1:29515, as the kernel writes it, in the state LISTEN.
  EXPECT_TRUE(eventually(
      [&] { return listening().find("01004D0A:734B 00000000:0000 0A") != std::string::npos; },
      kPatience))
      << listening() << first.output();
  EXPECT_EQ(listening().find("00000000:734B"), std::string::npos) << "every address";
}

}  // namespace
}  // namespace fleet::launch
