// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/uncaught.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "fleet/core/error.h"
#include "fleet/core/process/restart_needed.h"
#include "fleet/core/process/standard_output.h"
#include "fleet/core/process/stop_request.h"

namespace fleet {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

[[noreturn]] void on_terminate() {
  // A second thread's, while the first is printed, or one that printing throws.
  static std::atomic_flag has_begun;
  if (has_begun.test_and_set()) std::abort();
  if (!std::current_exception()) {
    std::fputs("error: std::terminate() without an exception: a thread was not joined?\n", stderr);
    std::abort();
  }
  int code = kFailed;
  try {
    throw;
  } catch (...) {
    code = report_current_exception();
  }
  std::fflush(nullptr);
  if (code == kFailed) std::abort();
  std::_Exit(code);
}

bool is_default(std::terminate_handler handler) {
#ifdef __GLIBCXX__
  return handler == &__gnu_cxx::__verbose_terminate_handler || handler == &std::abort;
#else
  return handler == &std::abort;
#endif
}

}  // namespace

int report_current_exception() {
  try {
    throw;
  } catch (const HelpRequested& help) {
    write_text(STDOUT_FILENO, help.what());
    return 0;
  } catch (const Stopped&) {
    return Stopped::kExitCode;  // a line was printed when it stopped
  } catch (const UsageError& error) {
    print_error(error);
    return kUsage;
  } catch (const RestartNeeded& error) {
    print_error(error);
    return RestartNeeded::kExitCode;
  } catch (const std::exception& error) {
    print_error(error);
  } catch (...) {
    print_error(std::runtime_error("something was thrown that is no std::exception"));
  }
  return kFailed;
}

void handle_uncaught_exceptions() {
  if (is_default(std::get_terminate())) std::set_terminate(on_terminate);
}

void ignore_file_size_signal() {
  struct sigaction now {};
  ::sigaction(SIGXFSZ, nullptr, &now);
  if (now.sa_handler == SIG_DFL) ::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace fleet
