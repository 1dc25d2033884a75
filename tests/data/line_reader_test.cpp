// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/formats/line_reader.h"

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/data/idx_bytes.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

class LineReaderTest : public ::testing::Test {
 protected:
  std::vector<std::string> lines_of(const std::string& bytes, LineText text = LineText::kProse,
                                    const std::string& name = "text") {
    LineReader reader(folder_.write(name, bytes), text);
    std::vector<std::string> lines;
    for (std::string_view line; reader.next(line);) lines.emplace_back(line);
    return lines;
  }
  std::string refusal(const std::string& bytes, LineText text = LineText::kProse,
                      const std::string& name = "text") {
    return testing::error_message_of<UsageError>([&] { lines_of(bytes, text, name); });
  }
  std::string path() const { return (folder_.path() / "text").string(); }

  TemporaryFolder folder_;
};

TEST_F(LineReaderTest, HandsOutLinesWithoutTheirEnds) {
  EXPECT_EQ(lines_of("one\r\ntwo\n\nfour"), (std::vector<std::string>{"one", "two", "", "four"}));
  EXPECT_EQ(lines_of(gzip("one\ntwo\n"), LineText::kProse, "text.gz"),
            (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(lines_of("").empty());
}

TEST_F(LineReaderTest, ANulByteIsNoTextAndItsPlaceIsNamed) {
  const std::string nul(1, '\0');
  for (const auto text : {LineText::kNames, LineText::kProse}) {
    EXPECT_TRUE(says(refusal("good\nbad" + nul + "\n", text),
                     "[data] " + path() + ": no text, but a NUL at byte 8",
                     "fix: give text in UTF-8"));
  }
  const std::string far(600'000, 'x');
  EXPECT_TRUE(says(refusal(far + "\n" + nul), "a NUL at byte 600001"));
  EXPECT_TRUE(says(refusal(gzip("ab" + nul), LineText::kProse, "text.gz"), "a NUL at byte 2"))
      << "of the unpacked text";
}

TEST_F(LineReaderTest, ProseInAnotherEncodingIsRefusedWithTheFirstByteThatIsNotUtf8) {
  std::string latin1 = "plain\n";
  for (int i = 0; i < 50; ++i) latin1 += "caf\xe9 au lait\n";
  EXPECT_TRUE(says(refusal(latin1), path() + ": not UTF-8: 33 of the first ",
                   " bytes are malformed, the first at byte 9", "iconv converts"));
  EXPECT_EQ(lines_of(latin1, LineText::kNames).size(), 51u) << "file names are bytes";
}

TEST_F(LineReaderTest, AFewMalformedBytesInALongTextPass) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += i % 200 == 0 ? "b\xff d\n" : "caf\xc3\xa9 au lait\n";
  EXPECT_EQ(lines_of(text).size(), 20'000u);
  EXPECT_EQ(lines_of("\xff\n").size(), 1u);
}

}  // namespace
}  // namespace fleet
