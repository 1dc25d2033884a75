// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/failure.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

using testing::error_message_of;

TEST(FailureTest, ComesThroughTheStoreAsItWas) {
  const Failure failure{.node = 1,
                        .what = "rank 3 exited with code 1",
                        .exit_code = 7,
                        .crashed = true,
                        .restartable = false,
                        .log = "log/workerlog.0",
                        .tail = {"one", "two"},
                        .shown = true};
  const auto again = Failure::from_json(failure.to_json());
  EXPECT_EQ(again.to_json(), failure.to_json());
  EXPECT_EQ(again.tail, failure.tail);
}

TEST(FailureTest, RankThatPrintedNothingIsNotSentToItsOutput) {
  const Failure quiet{.what = "rank 0 exited with code 5", .log = "log/workerlog.0", .shown = true};
  EXPECT_TRUE(says(explain(quiet, 0, 0), "it printed nothing; its log is log/workerlog.0"));
  auto spoke = quiet;
  spoke.tail = {"boom"};
  EXPECT_TRUE(says(explain(spoke, 0, 0), "its output is above and in log/workerlog.0"));
}

// Anybody who reaches the store can write there.
TEST(FailureTest, IsAnErrorWhenItIsNotOne) {
  const auto valid = Failure{.what = "x"}.to_json();
  auto other_type = valid;
  other_type.replace(other_type.find("\"node\":0"), 8, "\"node\":[]");
  auto too_large = valid;
  too_large.replace(too_large.find("\"node\":0"), 8, "\"node\":1e99");
  for (const auto& text : {std::string(), std::string("{}"), std::string("[1]"), other_type,
                           too_large, valid.substr(0, 20)}) {
    EXPECT_TRUE(says(error_message_of([&] { Failure::from_json(text); }),
                     "[fleetrun] a report of a failure in the store cannot be read", "fix: "))
        << text;
  }
}

}  // namespace
}  // namespace fleet::launch
