// SPDX-License-Identifier: Apache-2.0
// Two- and four-rank trainings of which random ranks are killed and stopped at random moments, for
// about two minutes; for longer with FLEET_SOAK_S (seconds), with another fate by FLEET_SOAK_SEED.

#include <cstdlib>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/ranks/fault_injector.h"
#include "tests/ranks/recovery.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kMinFaults = 3;

double number_from(const char* variable, double fallback) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atof(text) : fallback;
}

struct Setup {
  std::string name;
  int ranks = 2;
  Words strategy = {};
};

class SoakTest : public testing::TestWithParam<Setup> {};

// Every rank that is lost brings all of them back to the last snapshot; nothing of that is to be
// seen in the outcome.
TEST_P(SoakTest, RestartsEndWithTheBitsOfAnUndisturbedRun) {
  const auto& setup = GetParam();
  auto arguments = setup.strategy;
  arguments.insert(arguments.end(), {"--epochs=24", "--update_ms=20"});
  const auto expected = reference_digest(setup.ranks, arguments);
  const auto deadline =
      Clock::now() + std::chrono::duration<double>(number_from("FLEET_SOAK_S", 80) / 2);
  auto seed = static_cast<uint64_t>(number_from("FLEET_SOAK_SEED", 1));
  do {
    const TemporaryFolder dir;
    Launched run(recovery_job(setup.ranks, dir.path(), arguments,
                              {"--max_restarts=1000", "--peer_timeout_s=2"}),
                 with({"OMP_NUM_THREADS=1"}));
    FaultInjector fault_injector(run, setup.ranks, seed);
    int faults = 0;
    // Each job meets some, however late it begins; it takes longer than the first pause.
    while ((faults < kMinFaults || Clock::now() < deadline) && fault_injector.inject()) ++faults;
    const auto told = format("seed {}, {} faults:\n{}", seed, faults, fault_injector.history());
    std::printf("%s: %s", setup.name.c_str(), told.c_str());
    ASSERT_EQ(run.wait(120s), 0) << told << run.output();
    EXPECT_GT(faults, 0) << "the job ended before the first: nothing was shown\n" << run.output();
    ASSERT_EQ(after(run.log(0), "digest"), expected) << told << run.output();
    ++seed;
  } while (Clock::now() < deadline);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SoakTest,
                         testing::Values(Setup{"two ranks", 2},
                                         Setup{"four ranks, local SGD",
                                               4,
                                               {"--localsgd", "--localsgd_configs.k_steps=4"}}),
                         [](const auto& info) { return format("{}", info.param.ranks); });

}  // namespace
}  // namespace fleet::launch
