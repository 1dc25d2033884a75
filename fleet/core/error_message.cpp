// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/error_message.h"

#include <charconv>
#include <cstdlib>
#include <new>
#include <optional>
#include <stdexcept>
#include <string_view>

#include <c10/util/Exception.h>

#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

constexpr std::string_view kFix = "\n  fix: ";
constexpr std::string_view kSmaller =
    "make the model, the batch or the image or sequence smaller, or train within a memory budget "
    "(--memory_budget)";

bool wants_backtrace() {
  const char* told = std::getenv("FLEET_BACKTRACE");
  return told != nullptr && std::string_view(told) == "1";
}

bool is_frame(std::string_view line) {
  return line.starts_with("frame #") || line.starts_with("Exception raised from ") ||
         line.starts_with("C++ CapturedTraceback:");
}

std::string without_frames(std::string_view text) {
  std::string kept;
  bool is_behind_frames = false;  // where LibTorch leaves a line empty
  while (!text.empty()) {
    const auto end = text.find('\n');
    const auto line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    is_behind_frames = is_frame(line) || (is_behind_frames && line.empty());
    if (is_behind_frames) continue;
    kept += line;
    kept += '\n';
  }
  while (kept.ends_with('\n')) kept.pop_back();
  return kept;
}

std::string of_memory(const std::string& what) {
  return format("[memory] {}{}{}", what, kFix, kSmaller);
}

// LibTorch's words for memory that is not there, or that could be nowhere.
std::optional<std::string> sentence_of(std::string_view text) {
  constexpr std::string_view kAsked = "you tried to allocate ";
  if (const auto asked = text.find(kAsked); asked != text.npos) {
    const auto number = text.substr(asked + kAsked.size());
    uint64_t bytes = 0;
    std::from_chars(number.data(), number.data() + number.size(), bytes);
    return of_memory(format("the system has no {} left for a tensor",
                            byte_size_text(static_cast<int64_t>(bytes))));
  }
  constexpr std::string_view kSizes = "Storage size calculation overflowed with sizes=";
  if (const auto at = text.find(kSizes); at != text.npos) {
    const auto sizes = text.substr(at + kSizes.size());
    return of_memory(
        format("a tensor of {} is larger than any memory", sizes.substr(0, sizes.find(']') + 1)));
  }
  for (const std::string_view words :
       {"numel: integer multiplication overflow", "Stride calculation overflowed",
        "invalid size, possible overflow"}) {
    if (text.find(words) != text.npos) {
      return of_memory("a tensor is asked for that is larger than any memory");
    }
  }
  return {};
}

}  // namespace

std::string error_message(const std::exception& error) {
  if (wants_backtrace()) return error.what();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return of_memory(
        "the process cannot get more memory (ulimit -v, a control group or the machine)");
  }
  if (dynamic_cast<const std::length_error*>(&error) != nullptr) {
    return of_memory(
        format("a list is asked for that is larger than any memory ({})", error.what()));
  }
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const auto text = without_frames(of_torch ? of_torch->what_without_backtrace() : error.what());
  if (text.starts_with('[') && text.find(kFix) != text.npos) return text;  // Fleet's own
  return sentence_of(text).value_or(text);
}

std::string without_fix(std::string text) {
  if (const auto fix = text.rfind(kFix); fix != text.npos) text.resize(fix);
  return text;
}

}  // namespace fleet
