// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "fleet/applications/applications.h"
#include "fleet/core/error.h"

#include "bench/zoo/zoo.h"
#include "tests/data/temporary_folder.h"
#include "tests/fleet_tool/output_of.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tools/fleet/plan_model.h"

namespace fleet::tool {
namespace {

using fleet::testing::error_message_of;

std::string content(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(PlanTest, LargestBatchesAreJustThat) {
  PlanModel model({.name = "bert-base", .seq = 64, .rates = {.flops = 1e12, .bytes = 1e11}});
  const int64_t budget = int64_t{4} << 30;
  int64_t before = 0;
  for (const auto mode :
       {RecomputeMode::kPlain, RecomputeMode::kEveryBlock, RecomputeMode::kPlanned}) {
    const auto largest = largest_batch(model, mode, budget);
    ASSERT_GT(largest.samples, before) << name_of(mode);
    EXPECT_LE(largest.plan->predicted_peak, budget);
    EXPECT_TRUE(plan_within(model, mode, largest.samples, budget));
    EXPECT_FALSE(plan_within(model, mode, largest.samples + 1, budget));
    before = largest.samples;
  }
  EXPECT_EQ(largest_batch(model, RecomputeMode::kPlanned, model.fixed_bytes()).samples, 0);
}

// What `fleet convert` knows by name, and what programs can train.
TEST(PlanTest, KnowsEveryApplication) {
  for (const auto name : applications::preset_names()) {
    PlanModel model({.name = std::string(name),
                     .seq = 16,
                     .image = 32,
                     .rates = {.flops = 1e12, .bytes = 1e11}});
    const auto& profile = model.profile(2);
    EXPECT_GT(profile.plain_seconds(), 0) << name;
    EXPECT_FALSE(profile.checkpoints.empty()) << name;
    EXPECT_GT(model.parameters(), 10'000'000) << name;
  }
  EXPECT_EQ(sample_text("transformer-big", 16, 32), "seq 16");
  EXPECT_EQ(sample_text("vgg16-bn", 16, 32), "32 x 32");
}

// Nets that know nothing of devices, and that no application has.
TEST(PlanTest, KnowsEveryNetOfTheZoo) {
  for (const auto& entry : zoo::entries()) {
    for (const bool is_bf16 : {false, true}) {
      SCOPED_TRACE(entry.name);
      PlanModel model({.name = std::string(entry.name),
                       .is_bf16 = is_bf16,
                       .rates = {.flops = 1e12, .bytes = 1e11}});
      EXPECT_GT(model.parameters(), 10'000);
      EXPECT_FALSE(model.has_checkpoints());
      const auto plain = plan_within(model, RecomputeMode::kPlain, 4, int64_t{1} << 40);
      ASSERT_TRUE(plain);
      const auto activations = plain->predicted_peak - model.fixed_bytes();
      const auto planned = plan_within(model, RecomputeMode::kPlanned, 4,
                                       model.fixed_bytes() + activations * 9 / 10);
      ASSERT_TRUE(planned);
      EXPECT_GT(planned->predicted_seconds, 0);
    }
  }
}

// Small batches are slower per sample: plain training of another batch is no measure.
TEST(PlanTest, AddedTimeFollowsFromTheRowItself) {
  const auto text = output_of(
      {"plan", "--model", "bert-base", "--seq", "8", "--budget", "2GiB", "--gflops", "200000"});
  EXPECT_TRUE(says(text, "plain, if it fitted"));
  std::istringstream lines(text);
  int rows = 0;
  std::set<double> plain_times;
  for (std::string line; std::getline(lines, line);) {
    const auto name_end = line.find("largest");
    if (name_end == line.npos) continue;
    int64_t batch = 0;
    double peak = 0, time = 0, plain = 0, added = 0;
    std::string unit;
    std::istringstream(line.substr(name_end + 7)) >> batch >> peak >> unit >> time >> unit >>
        plain >> unit >> added;
    // Times have three digits, so each is off by up to 1/200 of its hundreds.
    const auto rounding = [](double x) {
      return 0.5 * std::pow(10, std::floor(std::log10(x)) - 2) / x;
    };
    const double bound = 100 * time / plain * (rounding(time) + rounding(plain)) + 0.05;
    EXPECT_NEAR(100 * (time / plain - 1), added, bound * 1.01) << line;
    plain_times.insert(plain);
    ++rows;
  }
  EXPECT_EQ(rows, 4);
  EXPECT_GT(plain_times.size(), 1u) << "batches differ, and so does plain training's time";
}

TEST(PlanTest, PrintsDrawsAndWrites) {
  const TemporaryFolder folder;
  const auto svg = folder.path() / "plan.svg", json = folder.path() / "plan.json";
  const auto text = output_of({"plan", "--model", "resnet50", "--image", "64", "--batch", "300",
                               "--budget", "2GiB", "--svg", svg.string(), "--json", json.string()});
  EXPECT_TRUE(says(text, "resnet50, 64 x 64, fp32 within 2.00 GiB", "25.6 million parameters",
                   "plain, largest ", "every block, largest ", "planned, largest ",
                   "batch 300 fits by a plan"));
  EXPECT_TRUE(says(content(svg), "<svg ", "every block", "memory in use, GiB", "budget", "</svg>"));
  EXPECT_EQ(content(svg).find("nan"), std::string::npos);
  EXPECT_TRUE(says(content(json), "\"mode\": \"planned, largest\"", "\"asked\": {\"batch\": 300"));
}

TEST(PlanTest, ExplainsFlagsThatAreWrong) {
  EXPECT_TRUE(says(error_message_of<UsageError>([] {
                     output_of({"plan", "--budget", "much"});
                   }),
                   "--budget: 'much' is no amount of memory", "write a size such as 32GiB"));
  EXPECT_TRUE(says(error_message_of<UsageError>([] {
                     output_of({"plan", "--budget", "24"});
                   }),
                   "--budget: '24' is no amount of memory",
                   "write a size with its unit, such as 24GiB"));
  EXPECT_TRUE(says(error_message_of<UsageError>([] {
                     output_of({"plan", "--model", "bert-huge"});
                   }),
                   "bert-large"));
  EXPECT_TRUE(says(error_message_of<UsageError>([] {
                     output_of({"plan", "--batch", "-1"});
                   }),
                   "--batch"));
  EXPECT_TRUE(says(error_message_of<UsageError>([] {
                     output_of({"plan", "--model", "bert-base", "--seq", "64", "--budget", "1GiB"});
                   }),
                   "not one sample fits into 1.00 GiB"));
  EXPECT_TRUE(says(error_message_of<UsageError>([] {
                     output_of({"plan", "--budget", "2000000TiB"});
                   }),
                   "more than one process can have"));
  for (const char* flag : {"--seq", "--image"}) {
    EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                       output_of({"plan", flag, "99999999999"});
                     }),
                     flag, "at most"));
  }
}

TEST(PlanTest, SaysHowABatchOfAnySizeIsSplit) {
  EXPECT_TRUE(says(output_of({"plan", "--model", "resnet18", "--image", "32", "--budget", "400MiB",
                              "--batch", "99999999999"}),
                   "batch 99999999999 does not fit at once; gradient_merge takes it in ",
                   " micro-batches of up to "));
}

TEST(PlanTest, FilesAreSeenToBeWritableBeforePlanning) {
  const TemporaryFolder folder;
  folder.write("file", "x");
  const auto below = (folder.path() / "file" / "plan.svg").string();
  EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                     output_of({"plan", "--svg", below});
                   }),
                   "--svg: cannot write", "Not a directory"));
  const auto same = (folder.path() / "plan").string();
  EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                     output_of({"plan", "--svg", same, "--json", same});
                   }),
                   "--svg and --json are the same file"));
}

}  // namespace
}  // namespace fleet::tool
