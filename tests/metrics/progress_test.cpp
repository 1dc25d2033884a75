// SPDX-License-Identifier: Apache-2.0
#include "fleet/metrics/progress.h"

#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "fleet/core/process/standard_output.h"

namespace fleet {
namespace {

// Two ends of a pipe or a terminal: Progress writes to one, the test reads from the other.
class Channel {
 public:
  static Channel pipe() {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    return Channel(ends[0], ends[1]);
  }
  static Channel terminal(unsigned short columns) {
    int reader = -1;
    int writer = -1;
    winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    if (::openpty(&reader, &writer, nullptr, nullptr, &size) != 0) {
      throw std::runtime_error("no pseudo terminal");
    }
    return Channel(reader, writer);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() { ::close(reader_), ::close(writer_); }

  int writer() const { return writer_; }

  /// All that was written so far.
  std::string text() const {
    ::fcntl(reader_, F_SETFL, O_NONBLOCK);
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::read(reader_, buffer, sizeof buffer)) > 0;) text.append(buffer, got);
    return text;
  }

 private:
  Channel(int reader, int writer) : reader_(reader), writer_(writer) {}
  int reader_;
  int writer_;
};

class ProgressTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("FLEET_TTY");
    ::unsetenv("FLEET_COLUMNS");
  }
  void TearDown() override { ProgressTest::SetUp(); }
};

class ProgressOnATerminalTest : public ProgressTest {
 protected:
  void SetUp() override {
    ProgressTest::SetUp();
    int reader = -1;
    int writer = -1;
    if (::openpty(&reader, &writer, nullptr, nullptr, nullptr) != 0) {
      GTEST_SKIP() << "this machine gives no pseudo terminal";
    }
    ::close(reader), ::close(writer);
  }
};

std::vector<std::string> pieces(const std::string& text, char separator) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string piece; std::getline(stream, piece, separator);) result.push_back(piece);
  return result;
}

TEST_F(ProgressOnATerminalTest, RewritesOneLineOnATerminalAndTakesItAway) {
  const Channel terminal = Channel::terminal(100);
  {
    Progress progress("epoch 1/5", 1000, {.fd = terminal.writer()});
    for (int i = 0; i < 1000; ++i) progress.advance(1, "loss 0.5");
  }
  const auto text = terminal.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 0) << "it must stay on its line";
  EXPECT_TRUE(text.starts_with("\repoch 1/5  [")) << text;
  EXPECT_TRUE(text.ends_with("\r\033[K")) << "the line must be gone at the end";
  EXPECT_NE(text.find("loss 0.5"), std::string::npos);
}

TEST_F(ProgressOnATerminalTest, DrawsAboutTenTimesASecond) {
  const Channel terminal = Channel::terminal(60);
  const auto start = std::chrono::steady_clock::now();
  {
    Progress progress("x", 1 << 30, {.fd = terminal.writer()});
    while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(550)) {
      progress.advance(1);
    }
    progress.advance(1);  // drawn for certain: the machine may not have let the loop run
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const auto text = terminal.text();
  const auto drawn = std::count(text.begin(), text.end(), '\r') - 1;  // less the erasing
  EXPECT_GE(drawn, 2);
  EXPECT_LE(drawn, took.count() / 0.1 + 2);
}

TEST_F(ProgressOnATerminalTest, WritesPlainLinesWhereASinkTakesItsText) {
  static std::string taken;
  static int fd = -1;
  const Channel terminal = Channel::terminal(100);
  fd = terminal.writer();
  set_text_sink([](int to, std::string_view text) {
    if (to == fd) taken += text;
    return to == fd;
  });
  {
    Progress progress("epoch 1/5", 1000, {.fd = fd});
    for (int i = 0; i < 1000; ++i) progress.advance(1);
  }
  set_text_sink(nullptr);
  write_text(fd, "again");
  EXPECT_EQ(pieces(taken, '\n').size(), 10u) << taken;
  EXPECT_EQ(taken.find('\r'), std::string::npos) << taken;
  EXPECT_EQ(terminal.text(), "again");
}

TEST_F(ProgressOnATerminalTest, FitsTheTerminal) {
  for (const unsigned short columns : {10, 25, 40, 60, 200}) {
    const Channel terminal = Channel::terminal(columns);
    Progress progress("epoch 1/5", 100, {.fd = terminal.writer()});
    progress.advance(50, "a note that is a good deal too long for a narrow window");
    auto line = terminal.text();
    line = line.substr(1, line.find('\033') - 1);
    EXPECT_LT(line.size(), columns);
    EXPECT_EQ(line.find("epoch 1/5"), 0u);
  }
}

TEST_F(ProgressOnATerminalTest, PrintsLinesAboveTheProgressLine) {
  const Channel terminal = Channel::terminal(40);
  Progress progress("work", 10, {.fd = terminal.writer()});
  progress.advance(1);
  terminal.text();
  progress.print("a line");
  const auto text = terminal.text();
  EXPECT_TRUE(text.starts_with("\r\033[Ka line\r\n\rwork")) << text;  // the terminal adds \r to \n
}

TEST_F(ProgressTest, WritesALineForEachTenthIntoAPipe) {
  const Channel pipe = Channel::pipe();
  {
    Progress progress("epoch 2/5", 60000, {.fd = pipe.writer()});
    for (int i = 0; i < 469; ++i) progress.advance(128, "loss 0.5");
  }
  const auto text = pipe.text();
  const auto lines = pieces(text, '\n');
  ASSERT_EQ(lines.size(), 10u) << text;
  EXPECT_TRUE(lines[0].starts_with("epoch 2/5: 10 %  ")) << lines[0];
  EXPECT_TRUE(lines[9].starts_with("epoch 2/5: 100 %  ")) << lines[9];
  EXPECT_TRUE(lines[9].ends_with(" samples/s  0:00 left  loss 0.5")) << lines[9];
  EXPECT_EQ(text.find_first_of("\r\033"), std::string::npos);
}

TEST_F(ProgressTest, WritesIntoAPipeEverySoOften) {
  const Channel pipe = Channel::pipe();
  Progress progress("slow", 1000, {.plain_interval_s = 0, .fd = pipe.writer()});
  progress.advance(1);
  progress.advance(1);
  EXPECT_EQ(pieces(pipe.text(), '\n').size(), 2u);
}

TEST_F(ProgressTest, BelievesFleetrunThatATerminalIsBehindThePipe) {
  ::setenv("FLEET_TTY", "1", 1);
  ::setenv("FLEET_COLUMNS", "20", 1);
  const Channel pipe = Channel::pipe();
  Progress progress("work", 10, {.fd = pipe.writer()});
  progress.advance(5, "a long note that does not fit");
  const auto text = pipe.text();
  EXPECT_TRUE(text.starts_with("\rwork")) << text;
  EXPECT_EQ(text.find('\033'), 1u + 19u);
}

TEST_F(ProgressOnATerminalTest, WritesPlainLinesToATerminalThatCannotErase) {
  ::setenv("TERM", "dumb", 1);
  const Channel terminal = Channel::terminal(60);
  Progress progress("work", 10, {.fd = terminal.writer()});
  progress.advance(10);
  EXPECT_TRUE(terminal.text().starts_with("work: 100 %"));
}

TEST_F(ProgressTest, IsSilentOnOtherRanks) {
  const Channel pipe = Channel::pipe();
  {
    Progress progress("work", 10, {.enabled = false, .plain_interval_s = 0, .fd = pipe.writer()});
    progress.advance(10);
    progress.print("a line");
  }
  EXPECT_EQ(pipe.text(), "");
}

TEST_F(ProgressTest, ShowsRateAndTimeLeft) {
  const ProgressFigures figures = {.label = "epoch 1/5",
                                   .unit = "samples",
                                   .note = "loss 0.41",
                                   .done = 15000,
                                   .total = 60000,
                                   .elapsed_s = 2.5};
  EXPECT_EQ(progress_text(figures, 79),
            "epoch 1/5  [=====                ]   25 %  6000 samples/s  0:08 left  loss 0.41");
  EXPECT_EQ(progress_text(figures, 60), "epoch 1/5   25 %  6000 samples/s  0:08 left  loss 0.41");
  EXPECT_EQ(
      progress_text({.label = "x", .unit = "steps", .done = 1, .total = 3, .elapsed_s = 4000}, 40),
      "x   33 %  0.00 steps/s  2:13:20 left");
  EXPECT_EQ(progress_text({.label = "x", .unit = "steps"}, 12), "x  100 %");
}

}  // namespace
}  // namespace fleet
