#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/data/temporary_folder.h"
#include "tests/fleet_tool/output_of.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tools/fleet/plan_model.h"
#include "tools/fleet/plan_picture.h"

namespace fleet::tool {
namespace {

using fleet::testing::error_of;

std::string content(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(PlanTest, LargestBatchesAreJustThat) {
  PlanModel model({.name = "bert-base", .seq = 64, .rates = {.flops = 1e12, .bytes = 1e11}});
  const int64_t budget = int64_t{4} << 30;
  int64_t before = 0;
  for (const auto way : {Way::kPlain, Way::kEveryBlock, Way::kPlanned}) {
    const auto largest = largest_batch(model, way, budget);
    ASSERT_GT(largest.samples, before) << name_of(way);
    EXPECT_LE(largest.plan->predicted_peak, budget);
    EXPECT_TRUE(plan_within(model, way, largest.samples, budget));
    EXPECT_FALSE(plan_within(model, way, largest.samples + 1, budget));
    before = largest.samples;
  }
  EXPECT_EQ(largest_batch(model, Way::kPlanned, model.fixed_bytes()).samples, 0);
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
  EXPECT_TRUE(says(content(json), "\"way\": \"planned, largest\"", "\"asked\": {\"batch\": 300"));
}

TEST(PlanTest, ExplainsFlagsThatAreWrong) {
  EXPECT_TRUE(says(error_of<UsageError>([] {
                     output_of({"plan", "--budget", "much"});
                   }),
                   "--budget: 'much' is no amount of memory", "write a size such as 32GiB"));
  EXPECT_TRUE(says(error_of<UsageError>([] {
                     output_of({"plan", "--model", "bert-huge"});
                   }),
                   "bert-large"));
  EXPECT_TRUE(says(error_of<UsageError>([] { output_of({"plan", "--batch", "-1"}); }), "--batch"));
  EXPECT_TRUE(says(error_of([] {
                     output_of({"plan", "--model", "bert-base", "--seq", "64", "--budget", "1GiB"});
                   }),
                   "not one sample fits into 1.00 GiB"));
}

}  // namespace
}  // namespace fleet::tool
