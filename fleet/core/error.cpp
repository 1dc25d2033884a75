#include "fleet/core/error.h"

#include <cstdio>

#include "fleet/core/format.h"
#include "fleet/core/restart_needed.h"
#include "fleet/core/stop_request.h"

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
  std::fprintf(stderr, "error: %s\n", error.what());
}

int run_main(int (*body)(int, char**), int argc, char** argv) {
  try {
    return body(argc, argv);
  } catch (const HelpRequested& help) {
    std::fputs(help.what(), stdout);
    return 0;
  } catch (const Stopped&) {
    return Stopped::kExitCode;  // who stopped has said so
  } catch (const UsageError& error) {
    print_error(error);
    return 2;
  } catch (const RestartNeeded& error) {
    print_error(error);
    return RestartNeeded::kExitCode;
  } catch (const std::exception& error) {
    print_error(error);
    return 1;
  }
}

void detail::assertion_failed(const char* condition, const char* file, int line,
                              const std::string& message) {
  throw std::logic_error(format("internal error at {}:{}: {} ({}). Please report this.", file, line,
                                message, condition));
}

}  // namespace fleet
