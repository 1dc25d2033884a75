// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/core/error.h"

namespace fleet::fuzz {

using Bytes = std::span<const uint8_t>;

inline std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A reader that is fed any bytes. What it accepts must be consistent; what it refuses must be a
/// `fleet::Error`. Everything else is a finding: another exception, a failed `require`, a
/// sanitizer's report, memory or time out of proportion.
///
/// A target is one source file with one object of this type. The same function runs under libFuzzer
/// (scripts/fuzz.sh) and, over the committed corpus, in the ordinary tests.
///
///   void run(Bytes bytes) {
///     const auto amount = BudgetAmount::parse(text_of(bytes));
///     require(!amount || amount->bytes >= 0, "a budget is not negative");
///   }
///   const Target target("budget_text", run);
struct Target {
  Target(const char* name, void (*run)(Bytes));

  const char* name;
  void (*run)(Bytes);
};

/// Those that are linked into this program.
const std::vector<Target>& targets();

/// What a target throws: no reader throws it, so nothing catches it by mistake.
struct Finding : std::exception {
  explicit Finding(std::string what) : text(std::move(what)) {}
  const char* what() const noexcept override { return text.c_str(); }
  std::string text;
};

inline void require(bool condition, const char* what) {
  if (!condition) throw Finding(what);
}

/// Whether `read` takes its input; false when it refuses it with an error that has a text.
template <typename Read>
bool accepts(const Read& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    require(std::string_view(error.what()).size() > 4, "an error says what is wrong");
    return false;
  }
}

}  // namespace fleet::fuzz
