// SPDX-License-Identifier: Apache-2.0
// The committed inputs of fuzz/corpus through the targets of fuzz/, with the compiler and the flags
// of everything else: so that the targets keep compiling, and a finding that was mended stays so.

#include <regex>
#include <set>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "fuzz/target.h"
#include "tests/support/launched.h"

namespace fleet::fuzz {
namespace {

namespace fs = std::filesystem;

class CorpusTest : public testing::TestWithParam<Target> {};

TEST_P(CorpusTest, HasNoFindings) {
  const auto& target = GetParam();
  int inputs = 0;
  for (const auto& file : fs::directory_iterator(fs::path(FLEET_CORPUS_DIR) / target.name)) {
    const auto text = launch::contents(file.path());
    const Bytes bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    EXPECT_NO_THROW(target.run(bytes)) << file.path();
    EXPECT_NO_THROW(target.run(bytes.first(bytes.size() / 2)))
        << "the first half of " << file.path();
    ++inputs;
  }
  EXPECT_GE(inputs, 5) << "a corpus shows a reader's ways";
}

INSTANTIATE_TEST_SUITE_P(Readers, CorpusTest, testing::ValuesIn(targets()),
                         [](const auto& info) { return std::string(info.param.name); });

std::set<std::string> paths_in(const std::string& text, const std::string& pattern) {
  const std::regex path(pattern);
  std::set<std::string> found;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), path);
       match != std::sregex_iterator(); ++match) {
    found.insert((*match)[1]);
  }
  return found;
}

// Only Clang builds these lists: sources were moved and removed, and nobody saw that fuzz.sh had
// ended with them.
TEST(FuzzSourcesTest, EverySourceThatTheReadersNeedIsThere) {
  const fs::path root = FLEET_SOURCE_DIR;
  const auto sources =
      paths_in(launch::contents(root / "fuzz/sources.cmake"), R"(\s([a-z0-9_/]+\.cpp))");
  ASSERT_GT(sources.size(), 50u);
  for (const auto& source : sources) EXPECT_TRUE(fs::exists(root / source)) << source;
  for (const auto& file :
       paths_in(launch::contents(root / "fuzz/CMakeLists.txt"), R"(\.\./([a-z0-9_/]+\.cpp))")) {
    EXPECT_TRUE(sources.contains(file)) << file << " has properties, and is not in sources.cmake";
  }
  for (const auto& entry : fs::directory_iterator(root / "fleet/train/strategies")) {
    if (entry.path().extension() != ".cpp") continue;
    EXPECT_TRUE(sources.contains(fs::relative(entry.path(), root).string()))
        << entry.path() << " has a strategy's fields, and is not in sources.cmake";
  }
}

// A reader that began to call another source ended every fuzz_NAME at the linker.
TEST(FuzzSourcesTest, SourcesOfIncludedHeadersAreThereOrNamedAsLeftOut) {
  const fs::path root = FLEET_SOURCE_DIR;
  const std::string source_path = R"(\s([a-z0-9_/]+\.cpp))";
  const auto lists = launch::contents(root / "fuzz/sources.cmake");
  const auto listed = paths_in(lists, source_path);
  auto including = paths_in(lists.substr(0, lists.find("fuzz_left_out")), source_path);
  for (const auto& target : targets()) including.insert(format("fuzz/{}.cpp", target.name));
  size_t headers = 0;
  for (const auto& source : including) {
    const auto text = launch::contents(root / source);
    for (const auto& header :
         paths_in(text, R"lit(#include "((?:fleet|tools)/[a-z0-9_/]+)\.h")lit")) {
      ++headers;
      if (fs::exists(root / (header + ".cpp"))) {
        EXPECT_TRUE(listed.contains(header + ".cpp"))
            << header << ".h is included by " << source
            << ": name its source in fuzz/sources.cmake, under fuzz_left_out if no reader calls it";
      }
    }
  }
  EXPECT_GT(headers, 200u);
}

}  // namespace
}  // namespace fleet::fuzz
