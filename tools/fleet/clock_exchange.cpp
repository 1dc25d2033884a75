// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/clock_exchange.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "fleet/comm/rendezvous/network_address.h"
#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/format.h"

namespace fleet::tool {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::array<char, 8> kWord = {'f', 'l', 'e', 'e', 't', 'c', 'l', '1'};
constexpr size_t kQuestionBytes = 16, kAnswerBytes = 32;
constexpr int kQuestions = 9;      // of one host: enough for a median that one late answer
                                   // does not move
constexpr int kMaxQuestions = 64;  // that a server answers on one connection
constexpr size_t kMaxHosts = 64;   // at once
constexpr auto kSilence = std::chrono::seconds(2);

void put(char* at, int64_t number) {
  for (int i = 0; i < 8; ++i)
    at[i] = static_cast<char>(static_cast<uint64_t>(number) >> (56 - 8 * i));
}

int64_t get(const char* at) {
  uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number = number << 8 | static_cast<unsigned char>(at[i]);
  return static_cast<int64_t>(number);
}

bool begins_with_word(const char* message) {
  return std::memcmp(message, kWord.data(), kWord.size()) == 0;
}

int milliseconds_until(Steady::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

// Small messages leave at once.
void set_up(int socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

bool wait_for(int socket, short event, Steady::time_point deadline) {
  pollfd wanted{socket, event, 0};
  while (true) {
    const int left = milliseconds_until(deadline);
    const int ready = ::poll(&wanted, 1, left);
    if (ready > 0) return true;
    if (ready == 0 && left == 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Tries all addresses of the host in turn; the reason is the last failure's.
comm::ConnectResult connect_to(const std::string& host, int port, Steady::time_point deadline) {
  const auto found = comm::try_resolve(host, static_cast<uint16_t>(port));
  comm::ConnectResult result{.reason = found.reason};
  for (const auto& address : found.addresses) {
    const std::chrono::milliseconds left(milliseconds_until(deadline));
    result = comm::connect_to(address, left);
    if (!result.socket) continue;
    set_up(result.socket.get());
    break;
  }
  return result;
}

bool read_all(int socket, char* data, size_t bytes, Steady::time_point deadline) {
  for (size_t done = 0; done < bytes;) {
    if (!wait_for(socket, POLLIN, deadline)) return false;
    const auto got = ::recv(socket, data + done, bytes - done, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

std::optional<ClockSample> ask_once(int socket, Steady::time_point deadline,
                                    const WallClock& clock) {
  std::array<char, kQuestionBytes> question{};
  std::copy(kWord.begin(), kWord.end(), question.begin());
  const auto sent = clock();
  put(question.data() + 8, sent);
  if (::send(socket, question.data(), question.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(question.size()))
    return {};
  std::array<char, kAnswerBytes> answer{};
  if (!read_all(socket, answer.data(), answer.size(), deadline)) return {};
  const auto received = clock();
  if (!begins_with_word(answer.data()) || get(answer.data() + 8) != sent) return {};
  return ClockSample{sent, get(answer.data() + 16), get(answer.data() + 24), received};
}

}  // namespace

int64_t system_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct ClockServer::Connection {
  Descriptor socket;
  std::array<char, kQuestionBytes> question{};
  size_t got = 0;
  int answered = 0;
  Steady::time_point heard = Steady::now();

  // False: it is over.
  bool answer(const WallClock& clock) {
    const auto read = ::recv(socket.get(), question.data() + got, question.size() - got, 0);
    if (read < 0) return errno == EINTR || errno == EAGAIN;
    if (read == 0) return false;
    heard = Steady::now();
    got += static_cast<size_t>(read);
    if (got < question.size()) return true;
    const auto arrived = clock();
    if (!begins_with_word(question.data()) || answered == kMaxQuestions) return false;
    std::array<char, kAnswerBytes> text{};
    std::copy(question.begin(), question.end(), text.begin());
    put(text.data() + 16, arrived);
    put(text.data() + 24, clock());
    got = 0;
    ++answered;
    // The send buffer holds many answers: if one does not fit, the client does not read.
    return ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(text.size());
  }
};

ClockServer::ClockServer(int port, WallClock clock) : clock_(std::move(clock)) {
  const auto fail = [&](const char* what) {
    throw Error("doctor", format("cannot {} port {}: {}", what, port, std::strerror(errno)),
                "give another port to --listen");
  };
  // IPv6 with IPv4 where there is IPv6, else IPv4 alone.
  socket_ = Descriptor(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool has_v6{socket_};
  if (!has_v6)
    socket_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_) fail("open a socket for");
  const int on = 1, off = 0;
  (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in6 wide{};
  sockaddr_in narrow{};
  sockaddr* address = reinterpret_cast<sockaddr*>(&narrow);
  socklen_t size = sizeof(narrow);
  if (has_v6) {
    (void)::setsockopt(socket_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    wide.sin6_family = AF_INET6;
    wide.sin6_port = htons(static_cast<uint16_t>(port));
    address = reinterpret_cast<sockaddr*>(&wide);
    size = sizeof(wide);
  } else {
    narrow.sin_family = AF_INET;
    narrow.sin_port = htons(static_cast<uint16_t>(port));
  }
  if (::bind(socket_.get(), address, size) != 0 || ::listen(socket_.get(), 16) != 0 ||
      ::getsockname(socket_.get(), address, &size) != 0)
    fail("listen at");
  port_ = ntohs(has_v6 ? wide.sin6_port : narrow.sin_port);
}

int ClockServer::serve_for(std::chrono::milliseconds time) {
  const auto deadline = Steady::now() + time;
  std::vector<Connection> connections;
  int hosts = 0;
  while (Steady::now() < deadline) {
    std::vector<pollfd> wanted;
    for (const auto& connection : connections)
      wanted.push_back({connection.socket.get(), POLLIN, 0});
    if (connections.size() < kMaxHosts) wanted.push_back({socket_.get(), POLLIN, 0});
    // Wakes up regularly to close silent connections.
    if (::poll(wanted.data(), wanted.size(), std::min(200, milliseconds_until(deadline))) < 0 &&
        errno != EINTR)
      break;
    const auto now = Steady::now();
    std::vector<Connection> open;
    for (size_t i = 0; i < connections.size(); ++i) {
      auto& connection = connections[i];
      const bool is_ready = wanted[i].revents != 0;
      const bool stays = is_ready ? connection.answer(clock_) : now - connection.heard < kSilence;
      if (stays) {
        open.push_back(std::move(connection));
      } else {
        hosts += connection.answered > 0 ? 1 : 0;
      }
    }
    if (wanted.size() > connections.size() && wanted.back().revents != 0) {
      Descriptor accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (accepted.get() >= 0) {
        set_up(accepted.get());
        open.push_back({std::move(accepted)});
      }
    }
    connections = std::move(open);
  }
  for (const auto& connection : connections) hosts += connection.answered > 0 ? 1 : 0;
  return hosts;
}

ClockDifference clock_difference(const std::vector<ClockSample>& samples) {
  FLEET_ASSERT(!samples.empty(), "no answers to take the median of");
  // Numbers of another host may be anything: they wrap around instead of overflowing.
  const auto seconds = [](int64_t later, int64_t earlier) {
    return static_cast<double>(static_cast<int64_t>(static_cast<uint64_t>(later) -
                                                    static_cast<uint64_t>(earlier))) *
           1e-9;
  };
  std::vector<double> ahead, trips;
  for (const auto& s : samples) {
    ahead.push_back((seconds(s.arrived, s.sent) + seconds(s.answered, s.received)) / 2);
    trips.push_back(seconds(s.received, s.sent) - seconds(s.answered, s.arrived));
  }
  std::ranges::nth_element(ahead, ahead.begin() + std::ssize(ahead) / 2);
  const double quickest = std::max(0.0, *std::ranges::min_element(trips));
  return {
      .ahead_s = ahead[ahead.size() / 2], .uncertain_s = quickest / 2, .round_trip_s = quickest};
}

ClockAnswer ask_clock(const std::string& host, int port, Steady::time_point deadline,
                      const WallClock& clock) {
  const auto [socket, reason] = connect_to(host, port, deadline);
  if (!socket) return {{}, format("no connection: {}", reason)};
  std::vector<ClockSample> samples;
  while (samples.size() < kQuestions) {
    const auto sample = ask_once(socket.get(), deadline, clock);
    if (!sample) break;
    samples.push_back(*sample);
  }
  if (samples.empty()) return {{}, "the program at that port is not fleet doctor --listen"};
  return {clock_difference(samples), ""};
}

}  // namespace fleet::tool
