// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/nodes/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fleet/comm/rendezvous/network_address.h"
#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

std::string numeric(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "";
  return text.data();
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
    const auto found = comm::resolve(ips[at], 0);
    if (std::any_of(found.begin(), found.end(), [&](const comm::NetworkAddress& address) {
          return std::find(own.begin(), own.end(), address.text()) != own.end();
        }))
      positions.push_back(static_cast<int>(at));
  }
  const auto lists = format("--ips {}; this machine has {}", joined(ips), joined(own));
  if (positions.empty())
    throw UsageError("fleetrun", format("none of the nodes is this machine: {}", lists),
                     "add one of its addresses to --ips, the same list on every node");
  if (positions.size() > 1)
    throw UsageError("fleetrun", format("several of the nodes are this machine: {}", lists),
                     "name every machine once, or start several ranks on it with --nproc_per_node");
  return positions.front();
}

std::vector<uint16_t> free_ports(size_t count) {
  std::vector<Descriptor> sockets;  // all open until the end, so that ports differ
  std::vector<uint16_t> ports;
  while (ports.size() < count) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (!socket || ::bind(socket.get(), generic, size) != 0 ||
        ::getsockname(socket.get(), generic, &size) != 0)
      throw Error("fleetrun",
                  format("no free port for rank {} ({})", ports.size(), std::strerror(errno)));
    sockets.push_back(std::move(socket));
    ports.push_back(ntohs(address.sin_port));
  }
  return ports;
}

}  // namespace fleet::launch
