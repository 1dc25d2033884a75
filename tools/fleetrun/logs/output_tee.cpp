// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/logs/output_tee.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

constexpr auto kRestWait = std::chrono::milliseconds(500);
constexpr size_t kPipeBytes = 65536;  // Linux's: one read empties a pipe

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

}  // namespace

OutputTee::OutputTee(int terminal_fd) : terminal_fd_(terminal_fd) {
  wake_event_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_event_)
    throw Error("fleetrun", format("cannot make an event descriptor ({})", std::strerror(errno)));
  thread_ = std::thread([this] { run(); });
}

OutputTee::~OutputTee() { finish(); }

void OutputTee::wake() {
  const uint64_t one = 1;
  while (::write(wake_event_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

Descriptor OutputTee::add(WorkerLog& log) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Error("fleetrun",
                format("cannot make a pipe for rank {} ({})", log.rank(), std::strerror(errno)));
  Descriptor reader(ends[0]), writer(ends[1]);
  {
    const std::lock_guard lock(mutex_);
    added_.push_back({std::move(reader), &log});
  }
  wake();
  return writer;
}

void OutputTee::run() {
  std::vector<Source> sources;
  std::unique_lock lock(mutex_);
  while (true) {
    std::ranges::move(added_, std::back_inserter(sources));
    added_.clear();
    const auto asked = asked_;
    const bool last_look = stop_ || asked > served_;
    if (stop_ || (finishing_ && sources.empty())) break;
    lock.unlock();
    take(sources, last_look ? 0 : -1);
    lock.lock();
    served_ = asked;  // a pass that began after the request has emptied every pipe
    changed_.notify_all();
  }
  lock.unlock();
  take(sources, 0);
  sources.clear();
  lock.lock();
  served_ = asked_;
  ended_ = true;
  changed_.notify_all();
}

void OutputTee::take(std::vector<Source>& sources, int timeout_ms) {
  std::vector<pollfd> ready;
  ready.reserve(sources.size() + 1);
  for (const auto& source : sources) ready.push_back({source.reader.get(), POLLIN, 0});
  ready.push_back({wake_event_.get(), POLLIN, 0});
  if (::poll(ready.data(), ready.size(), timeout_ms) < 0) return;
  uint64_t wakes = 0;
  if (ready.back().revents != 0) (void)!::read(wake_event_.get(), &wakes, sizeof(wakes));

  static thread_local std::array<char, kPipeBytes> buffer;
  std::vector<Source> open;
  for (size_t at = 0; at < sources.size(); ++at) {
    auto& source = sources[at];
    if (ready[at].revents == 0) {
      open.push_back(std::move(source));
      continue;
    }
    const auto got = ::read(source.reader.get(), buffer.data(), buffer.size());
    if (got > 0) {
      const std::string_view text(buffer.data(), static_cast<size_t>(got));
      source.log->append(text);
      if (terminal_fd_ != kNoTerminal) show(text, *source.log);
    }
    if (got > 0 || (got < 0 && errno == EINTR)) open.push_back(std::move(source));
  }
  sources = std::move(open);
}

// A closed pipe or terminal stays closed; a full disk may have room again.
void OutputTee::show(std::string_view text, const WorkerLog& log) {
  if (terminal_open_ && !write_all(terminal_fd_, text)) {
    const int error = errno;
    terminal_open_ = error != EPIPE && error != EIO;
    if (terminal_open_ && !std::exchange(has_warned_, true))
      log::warn("fleetrun",
                format("cannot write to standard output ({}): what rank {} prints is in "
                       "{}",
                       std::strerror(error), log.rank(), log.path()));
  }
  const std::lock_guard lock(mutex_);
  in_line_ = text.back() != '\n';
}

void OutputTee::flush() {
  std::unique_lock lock(mutex_);
  const auto own = ++asked_;
  wake();
  changed_.wait_for(lock, kRestWait, [&] { return ended_ || served_ >= own; });
}

void OutputTee::finish() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    finishing_ = true;
    wake();
    changed_.wait_for(lock, kRestWait, [&] { return ended_; });
    stop_ = true;
  }
  wake();
  thread_.join();
  fresh_line();
}

void OutputTee::fresh_line() {
  {
    const std::lock_guard lock(mutex_);
    if (!in_line_) return;
    in_line_ = false;
  }
  write_all(terminal_fd_, "\n");
}

}  // namespace fleet::launch
