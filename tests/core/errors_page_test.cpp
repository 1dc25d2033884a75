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

// Texts as the page quotes them: adjacent literals joined, "..." for what is filled in.
std::string literals_of_the_sources() {
  std::string all;
  for (const char* folder : {"fleet", "tools"}) {
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(FLEET_SOURCE_DIR) / folder)) {
      if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h")
        all += text_of(entry.path());
    }
  }
  all = std::regex_replace(all, std::regex("\"\\s*\n\\s*\""), "");
  return std::regex_replace(all, std::regex("\\{[^{}\n]{0,20}\\}"), "...");
}

TEST(ErrorsPageTest, QuotesMessagesThatTheSourcesHave) {
  const auto page = text_of(fs::path(FLEET_SOURCE_DIR) / "docs/errors.md");
  const auto begin = page.find("\n## What messages mean"), end = page.find("\n## ", begin + 1);
  ASSERT_NE(end, page.npos);
  const auto sources = literals_of_the_sources();
  std::istringstream lines(page.substr(begin, end - begin));
  int messages = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    const auto quoted = line.substr(3, line.find('`', 3) - 3);
    EXPECT_NE(sources.find(quoted), sources.npos) << "no source says: " << quoted;
    ++messages;
  }
  EXPECT_GT(messages, 50);
}

}  // namespace
}  // namespace fleet
