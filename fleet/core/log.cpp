#include "fleet/core/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "fleet/core/format.h"

namespace fleet::log {
namespace {

std::atomic<int> g_rank{0};
std::atomic<int> g_world{1};
std::atomic<bool> g_speaks{true};

// One write per line, so that lines of several ranks on one terminal do not mix.
void put(int fd, const std::string& line) {
  std::fflush(stdout);
  size_t done = 0;
  while (done < line.size()) {
    const auto wrote = ::write(fd, line.data() + done, line.size() - done);
    if (wrote <= 0) return;
    done += static_cast<size_t>(wrote);
  }
}

std::string speaker() { return g_world > 1 ? format("rank {}: ", g_rank.load()) : ""; }

}  // namespace

void set_rank(int rank, int world_size) {
  g_rank = rank;
  g_world = world_size;
  g_speaks = rank == 0;
}

void set_speaks(bool speaks) { g_speaks = speaks; }

void info(std::string_view area, std::string_view message) {
  if (g_speaks) put(STDOUT_FILENO, format("[{}] {}\n", area, message));
}

void warn(std::string_view area, std::string_view message) {
  if (g_speaks) put(STDERR_FILENO, format("[{}] warning: {}\n", area, message));
}

void info_here(std::string_view area, std::string_view message) {
  put(STDOUT_FILENO, format("[{}] {}{}\n", area, speaker(), message));
}

void warn_here(std::string_view area, std::string_view message) {
  put(STDERR_FILENO, format("[{}] warning: {}{}\n", area, speaker(), message));
}

void plain(std::string_view text) {
  if (g_speaks) put(STDOUT_FILENO, format("{}\n", text));
}

}  // namespace fleet::log
