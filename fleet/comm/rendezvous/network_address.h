// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/core/process/descriptor.h"

struct sockaddr;

namespace fleet::comm {

/// The address of a socket.
struct NetworkAddress {
  static constexpr uint32_t kMaxBytes = 128;  // of any kind of address

  alignas(8) std::array<unsigned char, kMaxBytes> bytes{};  // a sockaddr
  uint32_t size = 0;                                        // of them

  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(bytes.data()); }
  sockaddr* generic() { return reinterpret_cast<sockaddr*>(bytes.data()); }
  int family() const;
  uint16_t port() const;
  /// "10.0.0.1", "::1"
  std::string text() const;
  bool is_loopback() const;
};

/// Whether `host` spells the loopback: "localhost", "127.0.0.1", "::1".
bool is_loopback_name(std::string_view host);

/// Every address of a name, or the one that `host` spells; without any, the resolver's reason.
struct ResolveResult {
  std::vector<NetworkAddress> addresses = {};
  std::string reason = {};
};
ResolveResult try_resolve(const std::string& host, uint16_t port);

/// The same; a name that does not resolve is an Error at once: waiting would not help.
std::vector<NetworkAddress> resolve(const std::string& host, uint16_t port);

/// A non-blocking socket, or the reason why there is none.
struct ConnectResult {
  Descriptor socket = Descriptor();
  std::string reason = {};
};
ConnectResult connect_to(const NetworkAddress& address, std::chrono::milliseconds limit);

/// The local address of the route to `host`, at which others can reach this machine. An Error
/// without a route.
std::string address_towards(const std::string& host, uint16_t port);

/// The address at which the process that others know as `master` listens.
struct BindAddress {
  std::string address;
  std::string warning = {};  // why it is 0.0.0.0; empty: it is not
};

/// `from_elsewhere`: processes of other machines connect to it. For a master that they cannot reach
/// by that name (a loopback address, or one that this machine does not have, as behind NAT) it is
/// "0.0.0.0".
BindAddress bind_address(const std::string& master, bool from_elsewhere);

}  // namespace fleet::comm
