// SPDX-License-Identifier: Apache-2.0
// The committed inputs of fuzz/corpus through the targets of fuzz/, with the compiler and the flags
// of everything else: so that the targets keep compiling, and a finding that was mended stays so.

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace fleet::fuzz
