// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fleet {

/// A mistake that the user can fix, or a failure that the user must see.
///
/// The text says what happened with its values, why it matters, and on a line of its own what to
/// do:
///
///   throw Error("data", "label 12 is outside 0..9 in train.txt:7",
///               "check the label file");
class Error : public std::runtime_error {
 public:
  Error(std::string_view area, std::string_view what, std::string_view fix = {});

  /// All problems of one thing in one error; `problems` must not be empty.
  static Error all(std::string_view area, std::string_view headline,
                   const std::vector<std::string>& problems, std::string_view fix = {});

 private:
  explicit Error(const std::string& text) : std::runtime_error(text) {}
};

/// What the user wrote cannot be run: a flag, a strategy, a JSON file, an environment variable, a
/// value of an options struct, or a file that one of these names. It is found before the first
/// update, and would be found again by every new start: `run_main` makes exit code 2 of it, after
/// which fleetrun starts nothing again.
///
///   throw UsageError("strategy", "lars and lamb are both on", "choose one");
class UsageError : public Error {
 public:
  using Error::Error;

  static UsageError all(std::string_view area, std::string_view headline,
                        const std::vector<std::string>& problems, std::string_view fix = {});

 private:
  explicit UsageError(const Error& error) : Error(error) {}
};

/// `--help` or `--version` was given. No error: thrown because only `main` may print and exit.
class HelpRequested : public std::exception {
 public:
  explicit HelpRequested(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

/// Prints an exception the way every Fleet program does ("error: ..."), on standard error: its
/// `error_message` (error_message.h), without control characters.
void print_error(const std::exception& error);

/// Runs `body` as a program's main and returns its exit code: what `body` returns; 1 for an
/// exception, which is printed; 2 for a UsageError; 0 for HelpRequested, whose text goes to
/// standard output; 143 for Stopped (stop_request.h); 75 for RestartNeeded. Where standard output
/// could not be written, says so and makes 1 of 0. docs/errors.md has the table.
///
///   int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
int run_main(int (*body)(int, char**), int argc, char** argv);

namespace detail {
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line,
                                   const std::string& message);
}

}  // namespace fleet

/// For broken invariants of Fleet itself; a user's mistake throws `fleet::Error` instead.
#define FLEET_ASSERT(condition, message) \
  ((condition) ? (void)0                 \
               : ::fleet::detail::assertion_failed(#condition, __FILE__, __LINE__, (message)))
