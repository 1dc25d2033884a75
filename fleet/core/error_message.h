// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace fleet {

/// What to print of an exception: its text without the stack frames that LibTorch appends ("frame
/// #0: ...", "Exception raised from ..."), wherever in the text they are. Out of memory, which
/// LibTorch and the standard library tell by the line that failed, becomes a sentence with a fix.
/// With FLEET_BACKTRACE=1 it is `error.what()`, frames included.
///
///   catch (const std::exception& error) {
///     log::warn("data", error_message(error));
///   }
std::string error_message(const std::exception& error);

/// `text` without its last "fix: ..." line, for an error that quotes another and has its own fix.
std::string without_fix(std::string text);

}  // namespace fleet
