// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fleet/core/error.h"

namespace fleet::testing {

/// The text of the error that `body` throws, or "" when it throws none. What is not `Expected`
/// passes through and fails the test: a user's mistake must end in a `fleet::Error`.
template <typename Expected = Error, typename Body>
std::string error_message_of(Body&& body) {
  try {
    body();
  } catch (const Expected& error) {
    return error.what();
  }
  return "";
}

}  // namespace fleet::testing
