// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace fleet {
namespace {

std::atomic<TextSink> g_sink{nullptr};
std::atomic<int> g_first_error{0};  // errno of the first write to standard output that failed

void remember(int error) {
  int none = 0;
  g_first_error.compare_exchange_strong(none, error);
}

void flush() {
  if (std::fflush(stdout) != 0) remember(errno);
}

}  // namespace

void set_text_sink(TextSink sink) { g_sink = sink; }

bool is_text_redirected(int fd) {
  const TextSink sink = g_sink;
  return sink && sink(fd, {});
}

void write_text(int fd, std::string_view text) {
  if (text.empty()) return flush();
  if (const TextSink sink = g_sink; sink && sink(fd, text)) return;
  flush();
  while (!text.empty()) {
    const auto wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      if (fd == STDOUT_FILENO) remember(wrote < 0 ? errno : EIO);
      return;
    }
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

std::string standard_output_problem() {
  flush();
  if (std::ferror(stdout) != 0) remember(EIO);
  const int error = g_first_error;
  return error == 0 ? "" : std::strerror(error);
}

void open_missing_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest number that is free: this one. Opened the wrong way round, so that its use fails.
    [[maybe_unused]] const int opened =
        ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace fleet
