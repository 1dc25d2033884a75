// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/nodes/node_record.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

using testing::error_message_of;

const NodeRecord kRecord{{"10.0.0.1", {"10.0.0.1:6070", "10.0.0.1:6071"}}, 2, 3};

std::string with(const std::string& name, const std::string& value) {
  const auto text = kRecord.to_json();
  const auto at = text.find("\"" + name + "\":") + name.size() + 3;
  const auto end = text[at] == '[' ? text.find(']', at) + 1 : text.find_first_of(",}", at);
  return text.substr(0, at) + value + text.substr(end);
}

TEST(NodeRecordTest, ComesThroughTheStoreAsItWas) {
  const auto again = NodeRecord::from_json(kRecord.to_json(), 0);
  EXPECT_EQ(again.to_json(), kRecord.to_json());
  EXPECT_EQ(again.node.endpoints, kRecord.node.endpoints);
}

// Numbers that an int does not hold must not become other numbers.
TEST(NodeRecordTest, IsAnErrorWhenItIsNotOne) {
  for (const auto& text :
       {std::string(), std::string("{}"), std::string("[1]"), with("nodes", "1e99"),
        with("nodes", "1.5"), with("nodes", "0"), with("nodes", "4294967298"),
        with("nodes", "true"), with("max_restarts", "1e99"), with("max_restarts", "-1"),
        with("max_restarts", "18446744073709551615"), with("endpoints", "[]"),
        with("endpoints", "{\"a\":\"b\"}"), with("endpoints", "[1]"), with("address", "7")}) {
    EXPECT_TRUE(says(error_message_of([&] { NodeRecord::from_json(text, 3); }),
                     "[fleetrun] what node 3 says of itself cannot be read", "fix: "))
        << text;
  }
}

TEST(NodeRecordTest, TextsCannotSteerTheTerminal) {
  const auto record = NodeRecord::from_json(with("address", R"("\u001b[2J")"), 0);
  EXPECT_EQ(record.node.address, R"(\x1b[2J)");
}

}  // namespace
}  // namespace fleet::launch
