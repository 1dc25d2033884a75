// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/text/printable.h"

#include <gtest/gtest.h>

namespace fleet {
namespace {

TEST(PrintableTest, LeavesOrdinaryTextAsItIs) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("layer.0/weight [3x3] 'x' C:\\data"), "layer.0/weight [3x3] 'x' C:\\data");
  EXPECT_EQ(printable("caf\u00e9 \u6a21\u578b \U0001f600"), "caf\u00e9 \u6a21\u578b \U0001f600");
}

TEST(PrintableTest, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\x1b[2Jb"), "a\\x1b[2Jb");
  EXPECT_EQ(printable("one\ntwo\r\tthree"), "one\\ntwo\\r\\tthree");
  EXPECT_EQ(printable(std::string_view("\0\a\x7f", 3)), "\\x00\\x07\\x7f");
  EXPECT_EQ(printable("\u009b31m"), "\\x9b31m") << "CSI of one character";
}

TEST(PrintableTest, EscapesWhatWouldReorderOrHideTheText) {
  EXPECT_EQ(printable("a\u202eb\u2066c\u2028d\ufeff"), "a\\u202eb\\u2066c\\u2028d\\ufeff");
}

TEST(PrintableTest, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(printable("x\xe6\xa8"), "x\\xe6\\xa8") << "cut off";
}

TEST(PrintableTest, CutsALongTextBetweenCharactersAndSaysHowLongItWas) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdef", 5), "abcde... (6 bytes)");
  EXPECT_EQ(printable("abc\u00e9", 4), "abc... (5 bytes)");
  EXPECT_EQ(printable("abc\x1b", 6), "abc... (4 bytes)");
  EXPECT_LT(printable(std::string(1'000'000, 'x')).size(), 350u);
}

TEST(PrintableTest, DropsControlCharactersOfALineOfOutput) {
  EXPECT_EQ(without_control_characters("\x1b[31mred\x07 caf\u00e9\tend"), "[31mred caf\u00e9\tend");
  EXPECT_EQ(without_control_characters("a\xff\u202e"), "a\\xff");
}

TEST(PrintableTest, LinesStayLines) {
  EXPECT_EQ(printable_lines("one\x1b[2J\n  two\n"), "one\\x1b[2J\n  two\n");
  EXPECT_EQ(printable_lines(""), "");
  EXPECT_EQ(printable_lines(std::string(1000, 'x')), std::string(1000, 'x'));
}

}  // namespace
}  // namespace fleet
