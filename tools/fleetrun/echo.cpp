#include "tools/fleetrun/echo.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet::launch {
namespace {

constexpr auto kRestWait = std::chrono::milliseconds(500);

bool write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const auto wrote = ::write(fd, data, size);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    data += wrote;
    size -= static_cast<size_t>(wrote);
  }
  return true;
}

}  // namespace

Echo::Echo(int log_fd, int terminal_fd) : terminal_fd_(terminal_fd) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Error("fleetrun", format("cannot make a pipe ({})", std::strerror(errno)));
  reader_ = ends[0];
  writer_ = ends[1];
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this, log_fd, terminal_fd] { run(log_fd, terminal_fd); });
}

Echo::~Echo() {
  finish();
  ::close(reader_);
  ::close(stop_);
}

void Echo::run(int log_fd, int terminal_fd) {
  std::array<char, 65536> buffer;
  bool terminal_open = true;
  while (true) {
    std::array<pollfd, 2> ready = {pollfd{reader_, POLLIN, 0}, pollfd{stop_, POLLIN, 0}};
    if (::poll(ready.data(), ready.size(), -1) < 0 && errno == EINTR) continue;
    if (ready[0].revents == 0) break;  // only `stop_` is left
    const auto got = ::read(reader_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    const auto size = static_cast<size_t>(got);
    write_all(log_fd, buffer.data(), size);
    terminal_open = terminal_open && write_all(terminal_fd, buffer.data(), size);
    in_line_ = buffer[size - 1] != '\n';
  }
  ended_ = true;
}

void Echo::finish() {
  if (!thread_.joinable()) return;
  ::close(writer_);
  const auto deadline = std::chrono::steady_clock::now() + kRestWait;
  while (!ended_ && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const uint64_t one = 1;
  write_all(stop_, reinterpret_cast<const char*>(&one), sizeof(one));
  thread_.join();
  fresh_line();
}

void Echo::settle() const {
  const auto deadline = std::chrono::steady_clock::now() + kRestWait;
  int waiting = 0;
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (::ioctl(reader_, FIONREAD, &waiting) == 0 && waiting > 0 &&
           std::chrono::steady_clock::now() < deadline);
}

void Echo::fresh_line() {
  if (in_line_.exchange(false)) write_all(terminal_fd_, "\n", 1);
}

}  // namespace fleet::launch
