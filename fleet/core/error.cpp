// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/error.h"

#include <cstdio>

#include "fleet/core/error_message.h"
#include "fleet/core/process/standard_output.h"
#include "fleet/core/process/uncaught.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet {
namespace {

std::string compose(std::string_view area, std::string_view what, std::string_view fix) {
  std::string text = format("[{}] {}", area, what);
  if (!fix.empty()) text += format("\n  fix: {}", fix);
  return text;
}

}  // namespace

Error::Error(std::string_view area, std::string_view what, std::string_view fix)
    : std::runtime_error(compose(area, what, fix)) {}

Error Error::all(std::string_view area, std::string_view headline,
                 const std::vector<std::string>& problems, std::string_view fix) {
  FLEET_ASSERT(!problems.empty(), "an error without a problem");
  std::string text(headline);
  for (const auto& problem : problems) text += "\n  - " + problem;
  return Error(compose(area, text, fix));
}

UsageError UsageError::all(std::string_view area, std::string_view headline,
                           const std::vector<std::string>& problems, std::string_view fix) {
  return UsageError(Error::all(area, headline, problems, fix));
}

void print_error(const std::exception& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s\n", printable_lines(error_message(error)).c_str());
}

int run_main(int (*body)(int, char**), int argc, char** argv) {
  open_missing_streams();
  handle_uncaught_exceptions();
  ignore_file_size_signal();
  int code = 0;
  try {
    code = body(argc, argv);
  } catch (...) {
    code = report_current_exception();
  }
  const auto problem = standard_output_problem();
  if (problem.empty()) return code;
  print_error(Error("output", format("standard output could not be written: {}", problem),
                    "make room where it goes to, or send it somewhere else"));
  return code == 0 ? 1 : code;
}

void detail::assertion_failed(const char* condition, const char* file, int line,
                              const std::string& message) {
  throw std::logic_error(format("internal error at {}:{}: {} ({}). Please report this.", file, line,
                                message, condition));
}

}  // namespace fleet
