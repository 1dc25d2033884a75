// SPDX-License-Identifier: Apache-2.0
// What fleetrun shows of the output of a rank that failed.

#include "tools/fleetrun/logs/log_tail.h"

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

using Lines = std::vector<std::string>;

std::string frames(int count) {
  std::string text =
      "Exception raised from check at ../c10/core/A.cpp:7 (most recent call first):\n";
  for (int i = 0; i < count; ++i)
    text += format("frame #{}: c10::detail::f() + 0x5 (0x7f in libc10.so)\n", i);
  return text + "\n";
}

TEST(LogTailTest, FramesAreLeftOutAndTheMessageStays) {
  const auto text = "step 1\nerror: index 7 is out of range\n" + frames(40) + "step 2\n";
  EXPECT_EQ(tail_of(text, {}),
            (Lines{"step 1", "error: index 7 is out of range",
                   "... 40 stack frames left out: FLEET_BACKTRACE=1 shows them", "step 2"}));
}

TEST(LogTailTest, FramesAreShownOnRequest) {
  const auto lines = tail_of("error: index\n" + frames(3), {.with_frames = true});
  EXPECT_EQ(lines.size(), 6U);
  EXPECT_TRUE(lines[2].starts_with("frame #0: "));
}

TEST(LogTailTest, TheOtherFormOfAStackIsLeftOutToo) {
  EXPECT_EQ(tail_of("what(): no\nC++ CapturedTraceback:\n#4 a from b:0\n#5 c from d:0\n\nend\n"
                    "#1 of a list of the program's\n",
                    {}),
            (Lines{"what(): no", "... 2 stack frames left out: FLEET_BACKTRACE=1 shows them", "end",
                   "#1 of a list of the program's"}));
}

TEST(LogTailTest, ErrorStaysWhateverIsPrintedBehindIt) {
  std::string text = "error: old\nerror: [data] no such file\n  fix: check its name\n";
  for (int i = 0; i < 100; ++i) text += format("goodbye {}\n", i);
  const auto lines = tail_of(text, {.most_lines = 6});
  EXPECT_EQ(lines, (Lines{"error: [data] no such file", "  fix: check its name", "...",
                          "goodbye 97", "goodbye 98", "goodbye 99"}));
}

TEST(LogTailTest, LastLinesWithoutControlCharacters) {
  EXPECT_EQ(tail_of("a\nb\nstep 1\rstep 2\r\n\x1b[31mred\x07\nlast", {.most_lines = 3}),
            (Lines{"step 2", "[31mred", "last"}));
  EXPECT_TRUE(tail_of("", {}).empty());
}

TEST(LogTailTest, LastErrorIsTheLastLineThatBeginsLikeOne) {
  EXPECT_EQ(last_error("error: one\nan error: two\n  error: three\n"), "error: one");
  EXPECT_EQ(last_error("all is well\n"), "");
}

}  // namespace
}  // namespace fleet::launch
