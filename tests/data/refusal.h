#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

namespace fleet {

/// The text of the `fleet::Error` that `body` throws; a failure of the test when it does not.
template <typename Body>
std::string refusal_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

/// Whether `text` holds every one of `parts`.
template <std::convertible_to<std::string_view>... Part>
testing::AssertionResult says(std::string_view text, const Part&... parts) {
  for (const std::string_view part : {std::string_view(parts)...}) {
    if (text.find(part) == text.npos) {
      return testing::AssertionFailure() << "\"" << text << "\" does not say \"" << part << "\"";
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace fleet
