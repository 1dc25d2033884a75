// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/logs/log_tail.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::launch {
namespace {

constexpr size_t kLongestLine = 400;
constexpr size_t kMaxOfError = 6;  // its first line, and the indented ones that belong to it
constexpr std::string_view kError = "error: ";

std::string seen_last(std::string line) {
  while (line.ends_with('\r')) line.pop_back();
  const auto overwritten = line.rfind('\r');
  if (overwritten != std::string::npos) line.erase(0, overwritten + 1);
  line = without_control_characters(line);
  if (line.size() > kLongestLine) {
    line.resize(kLongestLine);
    line += " ...";
  }
  return line;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const auto newline = std::min(text.find('\n', at), text.size());
    lines.push_back(seen_last(std::string(text.substr(at, newline - at))));
    at = newline + 1;
  }
  return lines;
}

bool is_numbered(std::string_view line, std::string_view word) {
  while (line.starts_with(' ')) line.remove_prefix(1);
  return line.starts_with(word) && line.size() > word.size() &&
         std::isdigit(static_cast<unsigned char>(line[word.size()])) != 0;
}

// LibTorch prints its stack in one of two forms after the message of an error:
//   Exception raised from ... (most recent call first):     C++ CapturedTraceback:
//   frame #0: ...                                            #4 ...
std::vector<std::string> without_frames(const std::vector<std::string>& lines) {
  std::vector<std::string> kept;
  size_t left_out = 0;
  bool captured = false;
  const auto mark = [&] {
    if (left_out > 0)
      kept.push_back(format("... {} stack frame{} left out: FLEET_BACKTRACE=1 shows {}", left_out,
                            left_out == 1 ? "" : "s", left_out == 1 ? "it" : "them"));
    left_out = 0;
    captured = false;
  };
  bool in_stack = false;
  for (const auto& line : lines) {
    const bool opens_capture = line.find("C++ CapturedTraceback:") != line.npos;
    const bool opens = opens_capture || (line.find("Exception raised from ") != line.npos &&
                                         line.ends_with("(most recent call first):"));
    const bool is_frame = is_numbered(line, "frame #") || (captured && is_numbered(line, "#"));
    if (opens || is_frame) {
      captured = captured || opens_capture;
      left_out += is_frame ? 1 : 0;
      in_stack = true;
      continue;
    }
    if (in_stack && line.empty()) continue;  // it ends with empty lines
    in_stack = false;
    mark();
    kept.push_back(line);
  }
  mark();
  return kept;
}

// Where the last error begins; `lines.size()` without one.
size_t error_in(const std::vector<std::string>& lines) {
  // Of Fleet's programs, std::terminate and Python.
  static constexpr std::array<std::string_view, 3> kBegins = {kError, "terminate called",
                                                              "Traceback (most recent call last)"};
  for (size_t at = lines.size(); at-- > 0;)
    for (const auto begin : kBegins)
      if (lines[at].starts_with(begin)) return at;
  return lines.size();
}

}  // namespace

std::vector<std::string> tail_of(std::string_view text, const TailOptions& options) {
  auto lines = lines_of(text);
  if (!options.with_frames) lines = without_frames(lines);
  if (lines.size() <= options.most_lines) return lines;

  auto first = lines.size() - options.most_lines;
  std::vector<std::string> tail;
  if (const auto error = error_in(lines); error < first) {
    auto end = error + 1;
    while (end < first && end - error < kMaxOfError && lines[end].starts_with("  ")) ++end;
    tail.assign(lines.begin() + static_cast<std::ptrdiff_t>(error),
                lines.begin() + static_cast<std::ptrdiff_t>(end));
    if (end < first) tail.emplace_back("...");
    first = std::min(first + tail.size(), lines.size());
  }
  tail.insert(tail.end(), lines.begin() + static_cast<std::ptrdiff_t>(first), lines.end());
  return tail;
}

std::string last_error(std::string_view text) {
  const auto lines = lines_of(text);
  const auto last = std::find_if(lines.rbegin(), lines.rend(),
                                 [](const auto& line) { return line.starts_with(kError); });
  return last == lines.rend() ? "" : *last;
}

}  // namespace fleet::launch
