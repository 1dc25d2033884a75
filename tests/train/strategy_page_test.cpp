// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"
#include "fleet/train/program/train_config.h"
#include "fleet/train/strategy_check.h"

namespace fleet {
namespace {

const std::filesystem::path kDocs(FLEET_SOURCE_DIR "/docs");

// docs/strategy.md, or the strategy's own page in docs/strategies, holds rows made from the field
// lists: what changes there must change on the page. A failure prints the row that is missing.
class StrategyPageTest : public testing::Test {
 protected:
  StrategyPageTest() {
    pages_ = strategy_page_;
    for (const auto& entry : std::filesystem::directory_iterator(kDocs / "strategies")) {
      if (entry.path().extension() == ".md") pages_ += text_of(entry.path());
    }
  }

  static std::string text_of(const std::filesystem::path& page) {
    std::ostringstream text;
    text << std::ifstream(page).rdbuf();
    return text.str();
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

  std::string strategy_page_ = text_of(kDocs / "strategy.md");
  std::string pages_;
};

TEST_F(StrategyPageTest, HasARowForEveryField) {
  expect_rows_of(DistributedStrategy());
  expect_rows_of(TrainConfig());
}

// Its row says in a sentence what it does, and links to where that is explained: a heading of a
// page that names the switch.
TEST_F(StrategyPageTest, HasARowAndAPageForEverySwitch) {
  int switches = 0;
  for (const Field& field : fields_of(static_cast<const DistributedStrategy*>(nullptr)).fields) {
    DistributedStrategy strategy;
    if (field.nested() || !std::holds_alternative<bool>(field.get(&strategy))) continue;
    ++switches;
    const std::regex row("\n\\| `" + std::string(field.name) +
                         "` \\| [a-zA-Z][^|\n]{20,} \\| "
                         "\\[[^|\n\\]]+\\]\\(([a-z_/]+\\.md)[^|\n)]*\\) \\|\n");
    std::smatch found;
    ASSERT_TRUE(std::regex_search(strategy_page_, found, row)) << field.name;
    const auto page = text_of(kDocs / found[1].str());
    EXPECT_NE(page.find("`" + std::string(field.name)), page.npos)
        << found[1] << " does not name " << field.name;
  }
  EXPECT_GE(switches, 13);
}

// What a reader copies from a page.
TEST_F(StrategyPageTest, FilesInThePagesAreStrategies) {
  const std::regex block("\n```json\n([^`]*)\n```\n");
  for (const auto* name : {"strategy.md", "formats/strategy_json.md"}) {
    const auto page = text_of(kDocs / name);
    std::smatch found;
    ASSERT_TRUE(std::regex_search(page, found, block)) << name;
    const auto strategy = DistributedStrategy::from_json(found[1]);
    EXPECT_TRUE(strategy.recompute) << name;
    EXPECT_EQ(strategy.fuse_grad_size_in_MB, 16) << name;
    EXPECT_NO_THROW(check(strategy, {.world_size = 2})) << name;
  }
}

}  // namespace
}  // namespace fleet
