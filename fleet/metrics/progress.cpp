// SPDX-License-Identifier: Apache-2.0
#include "fleet/metrics/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "fleet/core/process/standard_output.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

constexpr auto kDrawInterval = std::chrono::milliseconds(100);
constexpr int kDefaultColumns = 80;
constexpr int kMaxBarCells = 30;
constexpr int kMinBarCells = 6;

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// A terminal or notebook that cannot erase a line would show all of them: it gets plain lines.
bool is_terminal(int fd) {
  if (environment("TERM") == "dumb" || is_text_redirected(fd)) return false;
  return ::isatty(fd) == 1 || environment("FLEET_TTY") == "1";
}

// Asked at every drawing, since a window changes its size.
int columns_of(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const int given = std::atoi(std::string(environment("FLEET_COLUMNS")).c_str());
  return given > 0 ? given : kDefaultColumns;
}

std::string clock_text(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole < 3600) return format("{}:{:02}", whole / 60, whole % 60);
  return format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

int64_t percent(int64_t done, int64_t total) { return total > 0 ? 100 * done / total : 100; }

// "45 %  9123 samples/s  0:04 left"
std::string figures_text(const ProgressFigures& figures) {
  std::string text = format("{:3} %", percent(figures.done, figures.total));
  if (figures.done > 0 && figures.elapsed_s > 0) {
    const double rate = static_cast<double>(figures.done) / figures.elapsed_s;
    text += rate < 10 ? format("  {:.2f} {}/s", rate, figures.unit)
                      : format("  {:.0f} {}/s", rate, figures.unit);
    text +=
        format("  {} left", clock_text(static_cast<double>(figures.total - figures.done) / rate));
  }
  return text;
}

std::string bar(int cells, int64_t done, int64_t total) {
  const auto filled = static_cast<int>(cells * percent(done, total) / 100);
  return format("[{}{}]", std::string(filled, '='), std::string(cells - filled, ' '));
}

}  // namespace

std::string progress_text(const ProgressFigures& figures, int columns) {
  const std::string numbers = figures_text(figures);
  std::string text = format("{}  {}", figures.label, numbers);
  if (!figures.note.empty()) text += format("  {}", figures.note);
  // The bar is what a narrow terminal can do without; two brackets and two spaces go with it.
  const int cells = std::min(kMaxBarCells, columns - static_cast<int>(text.size()) - 4);
  if (cells >= kMinBarCells) {
    text.insert(figures.label.size(), "  " + bar(cells, figures.done, figures.total));
  }
  text.resize(std::min<size_t>(text.size(), std::max(columns, 0)));
  return text;
}

Progress::Progress(std::string label, int64_t total, ProgressOptions options)
    : label_(std::move(label)),
      total_(std::max<int64_t>(total, 0)),
      options_(std::move(options)),
      mode_(!options_.enabled          ? Mode::kSilent
            : is_terminal(options_.fd) ? Mode::kTerminal
                                       : Mode::kPlain),
      start_(Clock::now()),
      drawn_at_(start_) {}

void Progress::advance(int64_t amount, std::string_view note) {
  if (mode_ == Mode::kSilent) return;
  done_ = std::clamp<int64_t>(done_ + amount, 0, total_);
  note_ = note;
  const auto now = Clock::now();
  const auto since = now - drawn_at_;
  if (mode_ == Mode::kTerminal) {
    if (!shown_ || since >= kDrawInterval) draw(now);
    return;
  }
  const int64_t tenths = percent(done_, total_) / 10;
  if (tenths > tenths_logged_ ||
      since >= std::chrono::duration<double>(options_.plain_interval_s)) {
    tenths_logged_ = tenths;
    draw(now);
  }
}

void Progress::print(std::string_view line) {
  if (mode_ == Mode::kSilent) return;
  const bool redraw = shown_;
  erase();
  put(format("{}\n", line));
  if (redraw) draw(Clock::now());
}

void Progress::finish() {
  erase();
  mode_ = Mode::kSilent;
}

void Progress::draw(Clock::time_point now) {
  drawn_at_ = now;
  const ProgressFigures figures = {
      .label = label_,
      .unit = options_.unit,
      .note = note_,
      .done = done_,
      .total = total_,
      .elapsed_s = std::chrono::duration<double>(now - start_).count()};
  if (mode_ == Mode::kTerminal) {
    // The last column stays free: some terminals wrap as soon as it is written.
    put("\r" + progress_text(figures, columns_of(options_.fd) - 1) + "\033[K");
    shown_ = true;
  } else {
    const auto numbers = figures_text(figures);
    put(format("{}: {}{}{}\n", label_, numbers.substr(numbers.find_first_not_of(' ')),
               note_.empty() ? "" : "  ", note_));
  }
}

void Progress::erase() {
  if (shown_) put("\r\033[K");
  shown_ = false;
}

void Progress::put(std::string_view text) const { write_text(options_.fd, text); }

}  // namespace fleet
