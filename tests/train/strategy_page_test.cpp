// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/train/program/train_config.h"
#include "fleet/train/strategy_check.h"

namespace fleet {
namespace {

// docs/strategy.md, or the strategy's own page in docs/strategies, holds rows made from the field
// lists: what changes there must change on the page. A failure prints the row that is missing.
class StrategyPageTest : public testing::Test {
 protected:
  StrategyPageTest() {
    const std::filesystem::path docs(FLEET_SOURCE_DIR "/docs");
    add(docs / "strategy.md");
    for (const auto& entry : std::filesystem::directory_iterator(docs / "strategies")) {
      if (entry.path().extension() == ".md") add(entry.path());
    }
  }

  void add(const std::filesystem::path& page) {
    std::ostringstream text;
    text << std::ifstream(page).rdbuf();
    pages_ += text.str();
  }

  void expect_row(const std::string& row) {
    EXPECT_NE(pages_.find(row + "\n"), std::string::npos)
        << "missing row, in docs/strategy.md or docs/strategies: " << row;
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

  std::string pages_;
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
