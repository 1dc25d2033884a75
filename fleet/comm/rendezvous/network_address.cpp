// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/network_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;

constexpr int kTries = 3;  // of a resolver that calls its failure temporary
constexpr auto kPause = 200ms;
constexpr auto kEveryAddress = "0.0.0.0";

bool can_bind(const NetworkAddress& address) {
  const Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket && ::bind(socket.get(), address.generic(), address.size) == 0;
}

}  // namespace

static_assert(sizeof(sockaddr_storage) <= NetworkAddress::kMaxBytes &&
              std::is_same_v<socklen_t, decltype(NetworkAddress::size)>);

int NetworkAddress::family() const { return generic()->sa_family; }

uint16_t NetworkAddress::port() const {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(generic())->sin6_port
                                    : reinterpret_cast<const sockaddr_in*>(generic())->sin_port);
}

std::string NetworkAddress::text() const {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(generic(), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return text.data();
}

bool NetworkAddress::is_loopback() const {
  if (family() == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in*>(generic())->sin_addr;
    return ntohl(address.s_addr) >> 24U == 127;
  }
  return family() == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(generic())->sin6_addr);
}

bool is_loopback_name(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

ResolveResult try_resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  int failure = EAI_AGAIN;
  for (int tries = 0; tries < kTries && failure == EAI_AGAIN; ++tries) {
    if (tries > 0) std::this_thread::sleep_for(kPause);
    failure = ::getaddrinfo(host.c_str(), format("{}", port).c_str(), &hints, &first);
  }
  if (failure != 0) {
    return {.reason = failure == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(failure)};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> found(first, freeaddrinfo);
  ResolveResult result;
  for (const auto* at = found.get(); at != nullptr; at = at->ai_next) {
    NetworkAddress address{.size = at->ai_addrlen};
    std::memcpy(address.bytes.data(), at->ai_addr, at->ai_addrlen);
    result.addresses.push_back(address);
  }
  return result;
}

std::vector<NetworkAddress> resolve(const std::string& host, uint16_t port) {
  auto result = try_resolve(host, port);
  if (!result.addresses.empty()) return std::move(result.addresses);
  throw Error(
      "comm",
      format("the name '{}' does not resolve to an address ({})", printable(host), result.reason),
      "check its spelling in MASTER_ADDR, --master or --ips, and this machine's DNS and "
      "/etc/hosts (getent hosts NAME shows what they say)");
}

ConnectResult connect_to(const NetworkAddress& address, std::chrono::milliseconds limit) {
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {.reason = std::strerror(errno)};
  int error = ::connect(socket.get(), address.generic(), address.size) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd writable{socket.get(), POLLOUT, 0};
    error = ::poll(&writable, 1, static_cast<int>(limit.count())) == 1 ? 0 : ETIMEDOUT;
    socklen_t size = sizeof(error);
    if (error == 0) ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) return {.socket = std::move(socket)};
  return {.reason = std::strerror(error)};
}

std::string address_towards(const std::string& host, uint16_t port) {
  std::string reason;
  for (const auto& peer : resolve(host, port)) {
    const Descriptor socket(::socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket) continue;
    NetworkAddress own{.size = NetworkAddress::kMaxBytes};
    // Connecting a datagram socket sends nothing, it only asks for the route.
    const bool is_routed = ::connect(socket.get(), peer.generic(), peer.size) == 0 &&
                           ::getsockname(socket.get(), own.generic(), &own.size) == 0;
    if (is_routed) return own.text();
    reason = std::strerror(errno);
  }
  throw Error("comm",
              format("this machine has no route to {} ({})", printable(host),
                     reason.empty() ? "no address of a known family" : reason),
              "check the network of this machine, and that MASTER_ADDR, --master or --ips names a "
              "machine that it can reach");
}

BindAddress bind_address(const std::string& master, bool from_elsewhere) {
  const auto addresses = resolve(master, 0);
  const auto own = std::find_if(addresses.begin(), addresses.end(), can_bind);
  const auto everywhere = [&](const std::string& why) {
    return BindAddress{kEveryAddress,
                       format("{}, so the store listens at every address of this machine; name the "
                              "master by an address of its own",
                              why)};
  };
  if (own == addresses.end()) {
    return everywhere(format("{} is not an address of this machine", printable(master)));
  }
  const auto text = own->text();
  if (!from_elsewhere || !own->is_loopback()) return {text};
  return everywhere(
      text == master ? format("other machines cannot reach {}", text)
                     : format("{} is {} here (see /etc/hosts), which other machines cannot reach",
                              printable(master), text));
}

}  // namespace fleet::comm
