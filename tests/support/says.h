// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace fleet {

/// Whether `text` holds every one of `parts`.
template <std::convertible_to<std::string_view>... Part>
::testing::AssertionResult says(std::string_view text, const Part&... parts) {
  for (const std::string_view part : {std::string_view(parts)...}) {
    if (text.find(part) == text.npos) {
      return ::testing::AssertionFailure() << "\"" << text << "\" does not say \"" << part << "\"";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace fleet
