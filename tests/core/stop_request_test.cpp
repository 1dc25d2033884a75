// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/stop_request.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/process/process_state.h"

namespace fleet {
namespace {

volatile sig_atomic_t g_heard = 0;

int stopped(int, char**) { throw Stopped("as asked"); }

TEST(StopRequestTest, SignalsAreRequestsWhileSomebodyListens) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const StopSignals signals;
    EXPECT_FALSE(stop_requested());
    ::raise(signal);
    EXPECT_TRUE(stop_requested());
  }
  EXPECT_FALSE(stop_requested()) << "forgotten with the last listener";
}

TEST(StopRequestTest, TextNamesTheSignalAndItsSender) {
  const StopSignals signals;
  request_stop();
  EXPECT_EQ(stop_request_text(), "this rank was asked to stop") << "by the program itself";
  ::raise(SIGUSR1);  // to this thread, so that it is here at once
  EXPECT_EQ(stop_request_text(),
            "this rank was asked to stop: SIGUSR1 from " + described_process(::getpid()));
  EXPECT_EQ(described_process(::getpid()).find("pid " + std::to_string(::getpid()) + " ("), 0U);
  EXPECT_EQ(described_process(0x7fffffff), "pid 2147483647") << "there is none";
}

TEST(StopRequestTest, TheLastListenerGivesTheSignalBack) {
  {
    const StopSignals first;
    { const StopSignals second; }
    ::raise(SIGTERM);
    EXPECT_TRUE(stop_requested());
  }
  EXPECT_EXIT(::raise(SIGTERM), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopRequestTest, AHandlerOfTheProgramStays) {
  ::signal(SIGTERM, [](int) { g_heard = 1; });
  {
    const StopSignals signals;
    ::raise(SIGTERM);
    EXPECT_FALSE(stop_requested());
  }
  EXPECT_EQ(g_heard, 1);
  g_heard = 0;
  ::raise(SIGTERM);
  EXPECT_EQ(g_heard, 1) << "also afterwards";
  ::signal(SIGTERM, SIG_DFL);
}

TEST(StopRequestTest, SigtermAfterALossOfOthersIsTheEnd) {
  const auto end = [] {
    const StopSignals signals;
    sigval about{};
    about.sival_int = kGroupIsBroken;
    ::sigqueue(::getpid(), SIGTERM, about);
    ::_exit(stop_requested() ? 1 : 0);
  };
  EXPECT_EXIT(end(), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopRequestTest, RunMainMakesAnExitCodeOfIt) { EXPECT_EQ(run_main(stopped, 0, nullptr), 143); }

}  // namespace
}  // namespace fleet
