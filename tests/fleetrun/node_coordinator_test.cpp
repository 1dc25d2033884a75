// SPDX-License-Identifier: Apache-2.0
// Launchers of two nodes that share a store, in one process.

#include "tools/fleetrun/nodes/node_coordinator.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/launched.h"
#include "tests/support/patience.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

class NodeCoordinatorTest : public testing::Test {
 protected:
  std::unique_ptr<NodeCoordinator> launcher(int node) {
    Cluster cluster{.node_rank = node, .nodes = {{"first", {}}, {"second", {}}}};
    return std::make_unique<NodeCoordinator>(store_, cluster, kSilence);
  }

  static bool is_ready(const NodeCoordinator& node) {
    return eventually([&] { return node.state().ready == 2; });
  }
  static bool has_lost_the_other(const NodeCoordinator& node) {
    return eventually([&] { return node.state().lost_nodes == std::vector{1}; });
  }

  inline static const auto kSilence = std::chrono::seconds(patient_s(3));

 private:
  comm::Store store_ = comm::Store::host(0, 60s, "127.0.0.1");
};

// As soon as all nodes are done, node 0 leaves: it may not have looked at the heartbeat of the node
// that rejoined.
TEST_F(NodeCoordinatorTest, FirstNodeWaitsForANodeThatWasLostAndRejoined) {
  auto first = launcher(0), second = launcher(1);
  first->begin(0);
  second->begin(0);
  ASSERT_TRUE(is_ready(*first));
  second.reset();
  ASSERT_TRUE(has_lost_the_other(*first));

  second = launcher(1);
  first->begin(1);
  second->begin(1);
  first->report_done();
  second->report_done();
  ASSERT_TRUE(eventually([&] { return first->state().done == 2; }));
  std::atomic<bool> has_left = false;
  std::thread leaving([&] {
    first->leave(60s);
    has_left = true;
  });
  std::this_thread::sleep_for(1s);  // several exchanges
  EXPECT_FALSE(has_left);
  second->leave(60s);
  leaving.join();
  EXPECT_EQ(second->state().failures.size(), 0U);
}

// A launcher that gave an unresponsive store up may reach it after all with its last message.
TEST_F(NodeCoordinatorTest, LeavingIsForgottenInTheNextAttempt) {
  auto first = launcher(0), second = launcher(1);
  first->begin(0);
  second->begin(0);
  ASSERT_TRUE(is_ready(*first));
  second->leave(60s);
  second.reset();
  std::this_thread::sleep_for(kSilence + 2s);
  EXPECT_TRUE(first->state().lost_nodes.empty());  // it has left
  first->begin(1);
  EXPECT_TRUE(has_lost_the_other(*first));  // and is missed now
}

}  // namespace
}  // namespace fleet::launch
