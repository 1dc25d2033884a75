// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/host_list.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::comm {
namespace {

using testing::error_message_of;
using Names = std::vector<std::string>;

TEST(HostListTest, KeepsWhatFollowsABracket) {
  EXPECT_EQ(expand_host_list("gpu[01-02]-ib"), (Names{"gpu01-ib", "gpu02-ib"}));
  EXPECT_EQ(expand_host_list("a[1]b.cluster.org,c"), (Names{"a1b.cluster.org", "c"}));
}

TEST(HostListTest, ExpandsListsRangesAndSeveralBrackets) {
  EXPECT_EQ(expand_host_list("a[1,3-5],b"), (Names{"a1", "a3", "a4", "a5", "b"}));
  EXPECT_EQ(expand_host_list("r[1-2]n[09-10]"), (Names{"r1n09", "r1n10", "r2n09", "r2n10"}));
  EXPECT_EQ(expand_host_list("r[1-2]n[01-16]").size(), 32u);
  EXPECT_EQ(expand_host_list("x[1-2][3-4]y"), (Names{"x13y", "x14y", "x23y", "x24y"}));
  EXPECT_EQ(expand_host_list("[1-2]"), (Names{"1", "2"}));
}

TEST(HostListTest, PadsAsTheFirstNumberOfARangeIsWritten) {
  EXPECT_EQ(expand_host_list("n[8-11]"), (Names{"n8", "n9", "n10", "n11"}));
  EXPECT_EQ(expand_host_list("n[008-011,7]"), (Names{"n008", "n009", "n010", "n011", "n7"}));
}

TEST(HostListTest, LeavesPlainNamesAlone) {
  EXPECT_EQ(expand_host_list("single"), Names{"single"});
  EXPECT_EQ(expand_host_list("rack2-n7,10.0.0.1"), (Names{"rack2-n7", "10.0.0.1"}));
}

TEST(HostListTest, SaysWhereAListBreaksOff) {
  EXPECT_EQ(error_message_of([] { expand_host_list("gpu[01-"); }),
            "[comm] the list 'gpu[01-' cannot be read: a number is missing at character 8\n"
            "  fix: give it as Slurm writes it, such as gpu[01-04,7]-ib,login");
  EXPECT_TRUE(
      says(error_message_of([] { expand_host_list("gpu[01"); }), "']' is missing at character 7"));
  EXPECT_TRUE(says(error_message_of([] { expand_host_list("gpu[5-3]"); }), "(3 after 5)"));
  EXPECT_TRUE(says(error_message_of([] { expand_host_list("a,,b"); }), "a name is missing"));
  EXPECT_TRUE(says(error_message_of([] { expand_host_list(""); }), "a name is missing"));
  EXPECT_TRUE(
      says(error_message_of([] { expand_host_list("a]"); }), "']' stands alone at character 2"));
  EXPECT_TRUE(says(error_message_of([] { expand_host_list("a\x1b[b]"); }), "'a\\x1b[b]'"));
}

TEST(HostListTest, RefusesMoreHostsThanThereCanBe) {
  for (const auto* list : {"a[0-999999999]", "a[1-999]b[1-999]", "a[1-60000],b[1-60000]"}) {
    EXPECT_TRUE(says(error_message_of([&] { expand_host_list(list); }), "too many hosts")) << list;
  }
  EXPECT_TRUE(
      says(error_message_of([] { expand_host_list("a[1234567890]"); }), "a number is too long"));
}

TEST(HostListTest, ExpandsTasksPerNode) {
  EXPECT_EQ(expand_task_counts("4(x2),3"), (std::vector{4, 4, 3}));
  EXPECT_EQ(expand_task_counts("8"), std::vector{8});
  EXPECT_TRUE(says(error_message_of([] { expand_task_counts("4(2)"); }), "'x' is missing"));
  EXPECT_TRUE(says(error_message_of([] { expand_task_counts("4(x99999999)"); }), "too many nodes"));
}

}  // namespace
}  // namespace fleet::comm
