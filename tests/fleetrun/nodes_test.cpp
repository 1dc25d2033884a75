// SPDX-License-Identifier: Apache-2.0
// fleetrun on two nodes.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/core/text/format.h"

#include "tests/support/launched.h"
#include "tests/support/says.h"
#include "tests/support/two_hosts.h"
#include "tools/fleetrun/nodes/network.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;

class NodesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = hosts_.refused(); !reason.empty()) GTEST_SKIP() << reason;
  }

  Words on(int node) const { return hosts_.on(node); }

  static Words by_number(int node, const Words& rest) {
    Words words = {"--nnodes=2", format("--node_rank={}", node), "--master=10.77.0.1:29511"};
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  }

 private:
  TwoHosts hosts_;
};

TEST_F(NodesTest, RanksCountThroughNodesOfDifferentSize) {
  const Words common = {"--ips=10.77.0.1,10.77.0.2", "sh", "-c",
                        "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK "
                        "$MASTER_ADDR:$MASTER_PORT $PADDLE_CURRENT_ENDPOINT "
                        "$PADDLE_TRAINER_ENDPOINTS"};
  Words two = {"--nproc_per_node=2"};
  two.insert(two.end(), common.begin(), common.end());
  Launched second(two, on(1));
  Launched first(common, on(0));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.output();
  const std::string all = " 10.77.0.1:6070,10.77.0.2:6070,10.77.0.2:6071\n";
  EXPECT_EQ(first.log(0), "0 3 0 1 0 10.77.0.1:6070 10.77.0.1:6070" + all);
  EXPECT_EQ(second.log(1), "1 3 0 2 1 10.77.0.1:6070 10.77.0.2:6070" + all);
  EXPECT_EQ(second.log(2), "2 3 1 2 1 10.77.0.1:6070 10.77.0.2:6071" + all);
  EXPECT_TRUE(says(second.output(), "[fleetrun] ranks 1 to 2 of 3 here, "));
}

TEST_F(NodesTest, FailureOnNodeOneEndsNodeZero) {
  const Words work = {"sh", "-c",
                      "if [ $RANK = 1 ]; then echo the reason; exit 7; fi; "
                      "exec sleep 600"};
  Launched first(by_number(0, work), on(0));
  Launched second(by_number(1, work), on(1));
  EXPECT_EQ(first.wait(), 7) << first.output();
  EXPECT_EQ(second.wait(), 7) << second.output();
  for (const auto* job : {&first, &second})
    EXPECT_TRUE(says(job->output(), ", node 1 at 10.77.0.2) exited with code 7 after "));
  EXPECT_TRUE(says(first.output(), "workerlog.1 on node 1:\n    | the reason\n"));
}

TEST_F(NodesTest, AllNodesRestartTogether) {
  const Words work = {"--max_restarts=1", "sh", "-c",
                      "echo try $TORCHELASTIC_RESTART_COUNT; "
                      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
                      "[ $RANK = 1 ] && exit 7; exec sleep 600"};
  Launched first(by_number(0, work), on(0));
  Launched second(by_number(1, work), on(1));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.output();
  for (const int node : {0, 1}) {
    const auto& job = node == 0 ? first : second;
    EXPECT_EQ(job.log(node), "try 0\n---------- fleetrun: restart 1 of 1 ----------\ntry 1\n");
    EXPECT_TRUE(says(job.output(), "exited with code 7"));
  }
}

TEST_F(NodesTest, CtrlCOnOneNodeEndsBoth) {
  const Words work = {"sh", "-c", "echo up; exec sleep 600"};
  Launched first(by_number(0, work), on(0));
  Launched second(by_number(1, work), on(1));
  ASSERT_TRUE(eventually([&] { return first.log(0) == "up\n" && second.log(1) == "up\n"; }));
  second.send(SIGINT);
  EXPECT_EQ(second.wait(), 130) << second.output();
  EXPECT_EQ(first.wait(), 130) << first.output();
  EXPECT_TRUE(says(first.output(), "stopped by SIGINT on node 1 (10.77.0.2)"));
}

TEST_F(NodesTest, SigtermOnTheMasterEndsBoth) {
  const Words work = {"sh", "-c", "echo up; exec sleep 600"};
  Launched first(by_number(0, work), on(0));
  Launched second(by_number(1, work), on(1));
  ASSERT_TRUE(eventually([&] { return first.log(0) == "up\n" && second.log(1) == "up\n"; }));
  first.send(SIGTERM);
  EXPECT_EQ(first.wait(), 143) << first.output();
  EXPECT_EQ(second.wait(), 143) << second.output();
  EXPECT_TRUE(says(second.output(), "stopped by SIGTERM on node 0"));
}

TEST_F(NodesTest, LostMasterEndsTheOtherNode) {
  const Words work = {"sh", "-c", "echo up; exec sleep 600"};
  Launched first(by_number(0, work), on(0));
  Launched second(by_number(1, work), on(1));
  ASSERT_TRUE(eventually([&] { return second.log(1) == "up\n"; }));
  first.send(SIGKILL);
  EXPECT_EQ(second.wait(), 1) << second.output();
  EXPECT_TRUE(says(second.output(), "error: [fleetrun] fleetrun on node 0 (10.77.0.1) has ended"));
  EXPECT_FALSE(says(second.output(), "frame #")) << second.output();
}

TEST_F(NodesTest, NodeWithoutHeartbeatEndsTheMaster) {
  const Words work = {"sh", "-c", "echo up; exec sleep 600"};
  Launched first(by_number(0, work), on(0));
  Launched second(by_number(1, work), on(1));
  ASSERT_TRUE(eventually([&] { return first.log(0) == "up\n" && second.log(1) == "up\n"; }));
  second.send(SIGKILL);
  EXPECT_EQ(first.wait(), 1) << first.output();
  EXPECT_TRUE(says(first.output(), "fleetrun on node 1 (10.77.0.2) has had no heartbeat for 10 s"));
}

// As a node 0 that is stopped: the kernel accepts, and nobody answers. The limit holds all the
// same.
TEST(JoinTimeoutTest, ListenerThatNeverAnswersIsLeftInTime) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, generic, size), 0);
  ASSERT_EQ(listen(listener, 16), 0);
  ASSERT_EQ(getsockname(listener, generic, &size), 0);
  const auto master = format("127.0.0.1:{}", ntohs(address.sin_port));
  Launched second({"--nnodes=2", "--node_rank=1", "--master=" + master, "--no_job_key",
                   "--join_timeout_s=1", "true"});
  EXPECT_EQ(second.wait(), 1) << second.output();
  EXPECT_TRUE(says(second.output(),
                   format("nothing answers at {} after 1 s (connected, then no answer)", master)));
  close(listener);
}

// A wrong command line, which a scheduler must not try again.
TEST_F(NodesTest, NodesThatWereStartedForOtherNumbersOfNodesEndWithTwo) {
  Launched first({"--nnodes=2", "--node_rank=0", "--master=10.77.0.1:29511", "true"}, on(0));
  Launched second({"--nnodes=3", "--node_rank=1", "--master=10.77.0.1:29511", "true"}, on(1));
  EXPECT_EQ(second.wait(), 2) << second.output();
  EXPECT_EQ(first.wait(), 2) << first.output();
  EXPECT_TRUE(says(first.output(), "node 1 was started for 3 nodes and this one for 2"));
  EXPECT_TRUE(says(second.output(), "node 0 was started for 2 nodes and this one for 3"));
}

// A node that waits for another one learns of it too: node 0 keeps the store until all know.
TEST(NodesOnOneHostTest, NodesThatContradictEachOtherEndAllOthersWithTwo) {
  const auto port = free_ports(1).front();
  const auto at = [&](int nodes, int rank) {
    return Words{"--no_job_key", format("--nnodes={}", nodes), format("--node_rank={}", rank),
                 format("--master=127.0.0.1:{}", port), "true"};
  };
  Launched first(at(4, 0));
  Launched waiting(at(4, 1));  // for node 2
  auto store = comm::Store::connect("127.0.0.1", port, 60s, "").prefixed("fleetrun");
  ASSERT_TRUE(eventually([&] { return store.try_get("node/1").has_value(); }));
  Launched wrong(at(5, 3));
  EXPECT_EQ(wrong.wait(), 2) << wrong.output();
  EXPECT_EQ(waiting.wait(), 2) << waiting.output();
  EXPECT_EQ(first.wait(), 2) << first.output();
  EXPECT_TRUE(says(wrong.output(), "node 0 was started for 4 nodes and this one for 5"));
  for (const auto* node : {&first, &waiting}) {
    EXPECT_TRUE(says(node->output(), "node 0 was started for 4 nodes and node 3 for 5"));
  }
}

TEST(NodesOnOneHostTest, AllNodesThatAreMissingAreNamed) {
  const auto master = format("--master=127.0.0.1:{}", free_ports(1).front());
  const Words rest = {"--no_job_key", master, "--join_timeout_s=0.5", "true"};
  const auto start = [&](int nodes) {
    Words words = {format("--nnodes={}", nodes), "--node_rank=0"};
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  };
  Launched three(start(3));
  EXPECT_EQ(three.wait(), 1) << three.output();
  EXPECT_TRUE(says(three.output(), "node 1 of 3, node 2 of 3 have not joined after 0.5 s"));
  Launched many(start(20));
  EXPECT_EQ(many.wait(), 1) << many.output();
  EXPECT_TRUE(says(many.output(), ", node 8 of 20 and 11 more have not joined after 0.5 s"));
}

TEST_F(NodesTest, MissingNodeIsNamedAfterTheJoinTimeout) {
  Launched first(by_number(0, {"--join_timeout_s=0.5", "true"}), on(0));
  EXPECT_EQ(first.wait(), 1);
  EXPECT_TRUE(says(first.output(), "node 1 of 2 has not joined after 0.5 s"));
  Launched second(by_number(1, {"--join_timeout_s=0.5", "true"}), on(1));
  EXPECT_EQ(second.wait(), 1);
  EXPECT_TRUE(says(second.output(),
                   "nothing answers at 10.77.0.1:29511 after 0.5 s (Connection refused), so "));
}

}  // namespace
}  // namespace fleet::launch
