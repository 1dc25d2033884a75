// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/train/strategy_check.h"
#include "fleet/train/train_config.h"

namespace fleet {
namespace {

// docs/strategy.md holds rows made from the field lists: what changes there must change on the
// page. A failure prints the row that the page should have.
class StrategyPageTest : public testing::Test {
 protected:
  StrategyPageTest() {
    std::ifstream page(FLEET_SOURCE_DIR "/docs/strategy.md");
    std::ostringstream text;
    text << page.rdbuf();
    page_ = text.str();
  }

  void expect_row(const std::string& row) {
    EXPECT_NE(page_.find(row + "\n"), std::string::npos) << "missing row: " << row;
  }

  void expect_rows_of(OptionsView defaults) {
    for (const auto& leaf : leaves(defaults)) {
      const FieldValue value = leaf.value();
      const std::string text = to_text(value);
      const std::string type(expected(value));
      expect_row(format("| `{}` | {} | {} | {} | {} | {} |", leaf.path,
                        type.substr(0, type.find(" below")), text.empty() ? "none" : text.c_str(),
                        leaf.field->unit, limits_text(*leaf.field), leaf.field->help));
    }
  }

  std::string page_;
};

TEST_F(StrategyPageTest, HasARowForEveryField) {
  expect_rows_of(DistributedStrategy());
  expect_rows_of(TrainConfig());
}

TEST_F(StrategyPageTest, SaysWhatIsHereToday) {
  for (const Field& field : fields_of(static_cast<const DistributedStrategy*>(nullptr)).fields) {
    DistributedStrategy strategy;
    const bool is_switch = !field.nested() && std::holds_alternative<bool>(field.get(&strategy));
    if (!is_switch) continue;
    field.set(&strategy, true);
    std::string state = "here";
    try {
      if (field.name == "auto") strategy.localsgd = true;
      check(strategy, {.world_size = 2});
    } catch (const Error& error) {
      // Any other problem, such as recompute without checkpoints, means that it is here.
      const std::string text = error.what();
      const auto at = text.find("arrives with ");
      if (at != std::string::npos) state = text.substr(at, text.find('\n', at) - at);
    }
    expect_row(format("| `{}` | {} |", field.name, state));
  }
}

}  // namespace
}  // namespace fleet
