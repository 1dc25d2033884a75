#include "tools/fleetrun/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet::launch {
namespace {

std::string numeric(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return text.data();
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, const char* port, int kind) {
  addrinfo hints{};
  hints.ai_socktype = kind;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port, &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return addresses;
  for (const auto* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    addresses.push_back(
        numeric(at->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)));
  }
  freeifaddrs(first);
  return addresses;
}

int own_position(const std::vector<std::string>& ips) {
  const auto own = own_addresses();
  std::vector<int> positions;
  for (size_t at = 0; at < ips.size(); ++at) {
    const auto found = resolve(ips[at], nullptr, SOCK_STREAM);
    for (const auto* entry = found.get(); entry != nullptr; entry = entry->ai_next)
      if (std::find(own.begin(), own.end(), numeric(entry->ai_addr, entry->ai_addrlen)) !=
          own.end()) {
        positions.push_back(static_cast<int>(at));
        break;
      }
  }
  const auto lists = format("--ips {}; this machine has {}", joined(ips), joined(own));
  if (positions.empty())
    throw Error("fleetrun", format("none of the nodes is this machine: {}", lists),
                "add one of its addresses to --ips, the same list on every node");
  if (positions.size() > 1)
    throw Error("fleetrun", format("several of the nodes are this machine: {}", lists),
                "name every machine once, or start several ranks on it with --nproc_per_node");
  return positions.front();
}

std::string address_towards(const Address& peer) {
  const auto found = resolve(peer.host, format("{}", peer.port).c_str(), SOCK_DGRAM);
  for (const auto* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    const int fd = ::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    auto* generic = reinterpret_cast<sockaddr*>(&own);
    // Connecting a datagram socket sends nothing, it only asks for the route.
    const bool routed = ::connect(fd, entry->ai_addr, entry->ai_addrlen) == 0 &&
                        ::getsockname(fd, generic, &size) == 0;
    ::close(fd);
    if (routed) return numeric(generic, size);
  }
  throw Error("fleetrun", format("there is no route from this machine to {}", peer.host),
              "check the name and the network; --master names node 0");
}

std::vector<uint16_t> free_ports(size_t count) {
  std::vector<int> sockets;  // all open until the end, so that no port comes twice
  std::vector<uint16_t> ports;
  while (ports.size() < count) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (fd < 0 || ::bind(fd, generic, size) != 0 || ::getsockname(fd, generic, &size) != 0)
      throw Error("fleetrun",
                  format("no free port for rank {} ({})", ports.size(), std::strerror(errno)));
    sockets.push_back(fd);
    ports.push_back(ntohs(address.sin_port));
  }
  for (const int fd : sockets) ::close(fd);
  return ports;
}

}  // namespace fleet::launch
