// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace fleet {

/// Where progress is printed, and how often.
struct ProgressOptions {
  bool enabled = true;  ///< whether this process prints at all: true on one rank
  std::string unit = "samples";
  double plain_interval_s = 30;  ///< in a pipe: a line at least this often, if anything moved
  int fd = 1;                    ///< where to; standard output
};

/// Shows how far a loop is: one line rewritten in place on a terminal, gone at the end; in a pipe
/// or file, a plain line about every tenth.
///
/// Under fleetrun standard output is a pipe; FLEET_TTY=1 and FLEET_COLUMNS say that a terminal is
/// behind it. Drawing is limited to ten times a second, so `advance` may be called in a tight
/// loop. While it is shown, print through `print`, or lines get mixed.
///
///   Progress progress("epoch 1/5", 60000, {.enabled = fleet::is_first_worker()});
///   for (const Batch& batch : loader.epoch(0)) progress.advance(batch.size(), "loss 0.412");
class Progress {
 public:
  Progress(std::string label, int64_t total, ProgressOptions options = {});
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `note` is shown behind the figures, shortened when the terminal is narrow.
  void advance(int64_t amount, std::string_view note = {});

  /// A separate line above the progress line.
  void print(std::string_view line);

  /// Erases the line; later calls do nothing.
  void finish();

 private:
  enum class Mode { kSilent, kTerminal, kPlain };
  using Clock = std::chrono::steady_clock;

  void draw(Clock::time_point now);
  void erase();
  void put(std::string_view text) const;

  std::string label_;
  int64_t total_;
  ProgressOptions options_;
  Mode mode_;
  int64_t done_ = 0;
  std::string note_;
  Clock::time_point start_;
  Clock::time_point drawn_at_;
  int64_t tenths_logged_ = 0;
  bool shown_ = false;
};

/// The figures of a progress line; `progress_text` fits it into `columns`, ASCII only.
struct ProgressFigures {
  std::string_view label = {};
  std::string_view unit = {};
  std::string_view note = {};
  int64_t done = 0;
  int64_t total = 0;
  double elapsed_s = 0;
};
std::string progress_text(const ProgressFigures& figures, int columns);

}  // namespace fleet
