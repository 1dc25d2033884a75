// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/error.h"

#include <signal.h>

#include <cstdlib>
#include <new>
#include <thread>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "fleet/core/error_message.h"
#include "fleet/core/process/restart_needed.h"
#include "fleet/core/process/stop_request.h"
#include "fleet/core/process/uncaught.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

// What `body` throws, as it would be printed.
template <typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error_message(error);
  }
  return "";
}

void fail_in_torch() { TORCH_CHECK(false, "sizes 3 and 4 do not match"); }

TEST(ErrorMessageTest, LeavesOutTheFramesOfLibTorch) {
  ASSERT_TRUE(says(testing::error_message_of<c10::Error>(fail_in_torch), "Exception raised from",
                   "frame #"))
      << "what this is about";
  EXPECT_EQ(message_of(fail_in_torch), "sizes 3 and 4 do not match");
}

TEST(ErrorMessageTest, LeavesOutFramesThatAnotherErrorQuotes) {
  const auto text = message_of([] {
    throw Error("comm", "rank 1 failed: " + testing::error_message_of<c10::Error>(fail_in_torch),
                "wait");
  });
  EXPECT_EQ(text, "[comm] rank 1 failed: sizes 3 and 4 do not match\n  fix: wait");
}

TEST(ErrorMessageTest, ShowsFramesOnRequest) {
  setenv("FLEET_BACKTRACE", "1", 1);
  const auto text = message_of(fail_in_torch);
  unsetenv("FLEET_BACKTRACE");
  EXPECT_TRUE(says(text, "sizes 3 and 4 do not match", "Exception raised from", "frame #"));
}

TEST(ErrorMessageTest, MemoryThatIsNotThereIsASentenceWithAFix) {
  // More than 47 bits can address; and more than 63 bits can count.
  EXPECT_TRUE(
      says(message_of([] { torch::empty({int64_t{1} << 50}); }),
           "[memory] the system has no 4096.00 TiB left for a tensor\n  fix: make the model, "
           "the batch "));
  EXPECT_TRUE(says(message_of([] {
                     torch::empty({int64_t{1} << 40, int64_t{1} << 40});
                   }),
                   "[memory] a tensor ", " larger than any memory\n  fix: "));
  EXPECT_TRUE(says(message_of([] { throw std::bad_alloc(); }),
                   "[memory] the process cannot get more memory (ulimit -v, ", "\n  fix: "));
  EXPECT_TRUE(says(message_of([] { const std::vector<char> list(size_t{1} << 63); }),
                   "[memory] a list is asked for that is larger than any memory", "\n  fix: "));
}

TEST(ErrorMessageTest, AnErrorThatQuotesAnotherTakesItsFixOff) {
  EXPECT_EQ(without_fix("[a] what\n  fix: this"), "[a] what");
  EXPECT_EQ(without_fix("[a] what"), "[a] what");
}

int code_of(int (*body)(int, char**)) {
  char name[] = "program";
  char* argv[] = {name, nullptr};
  return run_main(body, 1, argv);
}

TEST(RunMainTest, EveryKindOfEndHasItsCode) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(code_of([](int, char**) { return 7; }), 7);
  EXPECT_EQ(code_of([](int, char**) -> int { throw HelpRequested("help\n"); }), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "help\n");
  EXPECT_EQ(code_of([](int, char**) -> int { throw UsageError("a", "b"); }), 2);
  EXPECT_EQ(code_of([](int, char**) -> int { throw UsageError::all("a", "b", {"c"}); }), 2);
  EXPECT_EQ(code_of([](int, char**) -> int { throw Error("a", "b"); }), 1);
  EXPECT_EQ(code_of([](int, char**) -> int { throw std::bad_alloc(); }), 1);
  EXPECT_EQ(code_of([](int, char**) -> int { throw 3; }), 1);
  EXPECT_EQ(code_of([](int, char**) -> int { throw RestartNeeded("a", "b"); }), 75);
  EXPECT_EQ(code_of([](int, char**) -> int { throw Stopped("asked to"); }), 143);
}

TEST(RunMainTest, AnErrorCannotSteerTheTerminal) {
  ::testing::internal::CaptureStderr();
  code_of([](int, char**) -> int { throw Error("data", "key '\x1b[2J'\nis here", "none"); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "error: [data] key '\\x1b[2J'\nis here\n  fix: none\n");
}

// Programs without run_main, and threads that nobody waits for.
class UncaughtDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  template <typename Body>
  static void throw_in_a_thread(const Body& body) {
    handle_uncaught_exceptions();
    std::thread(body).join();
  }
};

TEST_F(UncaughtDeathTest, PrintsTheMessageWithoutFramesAndAborts) {
  EXPECT_EXIT(throw_in_a_thread(fail_in_torch), ::testing::KilledBySignal(SIGABRT),
              "^error: sizes 3 and 4 do not match\n$");
}

TEST_F(UncaughtDeathTest, AUsageErrorHasItsExitCode) {
  EXPECT_EXIT(throw_in_a_thread([] { throw UsageError("strategy", "both are on", "choose"); }),
              ::testing::ExitedWithCode(2), "^error: \\[strategy\\] both are on\n  fix: choose\n$");
}

TEST_F(UncaughtDeathTest, AStopThatNobodyCatchesHasItsExitCode) {
  EXPECT_EXIT(throw_in_a_thread([] { throw Stopped("asked to"); }), ::testing::ExitedWithCode(143),
              "^$");
}

TEST_F(UncaughtDeathTest, AThreadThatWasNotJoinedIsSaid) {
  EXPECT_EXIT(
      {
        handle_uncaught_exceptions();
        std::terminate();
      },
      ::testing::KilledBySignal(SIGABRT), "without an exception: a thread was not joined");
}

}  // namespace
}  // namespace fleet
