// SPDX-License-Identifier: Apache-2.0
#include "bench/delayed_link.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <deque>

#include "fleet/core/text/format.h"

#include "tests/support/two_hosts.h"

namespace fleet::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Packet {
  Clock::time_point due;
  std::vector<char> bytes;
};

// A TUN device on that host; -1 when it cannot be had. A thread that has entered a host's network
// stays there, so it is one of its own.
int open_end(const std::string& host, const std::string& device) {
  int end = -1;
  std::thread([&] {
    const int network = ::open(format("/var/run/netns/{}", host).c_str(), O_RDONLY | O_CLOEXEC);
    const bool entered = network >= 0 && ::setns(network, CLONE_NEWNET) == 0;
    if (network >= 0) ::close(network);
    if (!entered) return;
    end = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ifreq request{};
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    std::strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
    if (end >= 0 && ::ioctl(end, TUNSETIFF, &request) != 0) {
      ::close(end);
      end = -1;
    }
  }).join();
  return end;
}

}  // namespace

std::string DelayedLink::device(int host) { return format("far{}", host); }

DelayedLink::DelayedLink(const launch::TwoHosts& hosts, std::chrono::milliseconds delay)
    : delay_(delay) {
  for (int host = 0; host < 2; ++host) {
    const int end = open_end(hosts.name(host), device(host));
    if (end < 0) {
      refused_ = "TUN devices cannot be made here";
      return;
    }
    ends_.push_back(end);
    if (!hosts.connect(host, device(host), format("10.78.0.{}/24", host + 1))) {
      refused_ = "a TUN device cannot be given an address here";
      return;
    }
  }
  threads_.emplace_back([this] { carry(ends_[0], ends_[1]); });
  threads_.emplace_back([this] { carry(ends_[1], ends_[0]); });
}

DelayedLink::~DelayedLink() {
  stop_ = true;
  for (auto& thread : threads_) thread.join();
  for (const int end : ends_) ::close(end);
}

void DelayedLink::carry(int from, int to) const {
  std::deque<Packet> under_way;
  std::array<char, 65536> buffer{};
  while (!stop_) {
    auto wait = std::chrono::nanoseconds(std::chrono::milliseconds(50));
    if (!under_way.empty()) wait = std::min(wait, under_way.front().due - Clock::now());
    wait = std::max(wait, std::chrono::nanoseconds(0));
    const timespec limit{.tv_sec = 0, .tv_nsec = wait.count()};
    pollfd end{.fd = from, .events = POLLIN, .revents = 0};
    ::ppoll(&end, 1, &limit, nullptr);
    const auto now = Clock::now();
    for (ssize_t size = 0; (size = ::read(from, buffer.data(), buffer.size())) > 0;) {
      under_way.push_back({now + delay_, {buffer.data(), buffer.data() + size}});
    }
    while (!under_way.empty() && under_way.front().due <= Clock::now()) {
      const auto& bytes = under_way.front().bytes;
      // A device that takes no more loses the packet, as a link would; TCP sends it again.
      [[maybe_unused]] const auto written = ::write(to, bytes.data(), bytes.size());
      under_way.pop_front();
    }
  }
}

}  // namespace fleet::bench
