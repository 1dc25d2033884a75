// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

namespace fleet {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// Every "FLEET_NAME" in quotes in the sources of the library and the programs.
std::set<std::string> variables() {
  const std::regex name("\"(FLEET_[A-Z0-9_]+)\"");
  std::set<std::string> found;
  for (const char* folder : {"fleet", "tools", "apps", "bench"}) {
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(FLEET_SOURCE_DIR) / folder)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
      const auto text = text_of(entry.path());
      for (auto match = std::sregex_iterator(text.begin(), text.end(), name);
           match != std::sregex_iterator(); ++match) {
        found.insert((*match)[1]);
      }
    }
  }
  return found;
}

TEST(ErrorsPageTest, HasARowForEveryEnvironmentVariableThatIsRead) {
  const auto page = text_of(fs::path(FLEET_SOURCE_DIR) / "docs/errors.md");
  const auto names = variables();
  ASSERT_TRUE(names.contains("FLEET_TIMEOUT_S") && names.contains("FLEET_BACKTRACE"));
  for (const auto& variable : names) {
    EXPECT_NE(page.find("\n| `" + variable + "`"), page.npos)
        << "docs/errors.md has no row for " << variable;
  }
}

}  // namespace
}  // namespace fleet
