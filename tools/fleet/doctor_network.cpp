// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/doctor_network.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "fleet/comm/rendezvous/host_id.h"
#include "fleet/comm/rendezvous/network_address.h"
#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::tool {
namespace {

using State = Finding::State;
using Steady = std::chrono::steady_clock;

// Lines of logs of two hosts can be put in order while their clocks agree to this.
constexpr double kLogs = 0.1;
// Credentials of Slurm (munge), Kerberos and TLS expire after minutes.
constexpr double kCredentials = 60;

// Each once, as text.
std::string text_of(const std::vector<comm::NetworkAddress>& addresses) {
  std::vector<std::string> seen;
  std::string text;
  for (const auto& address : addresses) {
    const auto one = address.text();
    if (std::ranges::find(seen, one) != seen.end()) continue;
    text += (text.empty() ? "" : ", ") + one;
    seen.push_back(one);
  }
  return text;
}

Finding own_name_finding(const std::string& name) {
  const auto found = comm::try_resolve(name, 0);
  if (found.addresses.empty()) {
    return {State::kAdvice, "host name", format("{} does not resolve: {}", name, found.reason),
            "add it to /etc/hosts or to DNS, or give other nodes this machine's address"};
  }
  const auto text = format("{} is {}", name, text_of(found.addresses));
  if (std::ranges::all_of(found.addresses, &comm::NetworkAddress::is_loopback)) {
    return {State::kAdvice, "host name", text,
            "fine for one machine; with several, name this one by an address that the others "
            "reach (--ips, --master, MASTER_ADDR), not by its name"};
  }
  return {State::kOk, "host name", text};
}

std::vector<Finding> peer_findings(const Peer& peer, Steady::time_point deadline) {
  const auto found = comm::try_resolve(peer.host, 0);
  const auto name = format("peer {}", peer.host);
  if (found.addresses.empty()) {
    return {{State::kProblem, name, format("does not resolve: {}", found.reason),
             "check the spelling, add it to /etc/hosts or to DNS, or give its address"}};
  }
  std::vector<Finding> findings{{State::kOk, name, format("is {}", text_of(found.addresses))}};
  if (peer.port == 0) return findings;
  const auto clock = ask_clock(peer.host, peer.port, deadline);
  if (clock.difference) {
    findings.push_back(clock_finding(peer.host, *clock.difference));
  } else {
    findings.push_back({State::kProblem, format("port {} of {}", peer.port, peer.host),
                        clock.failure,
                        format("start 'fleet doctor --listen {}' there first; if it runs, a "
                               "firewall is in between, and training needs its ports too",
                               peer.port)});
  }
  return findings;
}

// The port range from which the kernel takes ports for outgoing connections.
bool is_ephemeral(int port, const std::string& root) {
  int low = 0, high = 0;
  std::ifstream file(std::filesystem::path(root) / "proc/sys/net/ipv4/ip_local_port_range");
  return file >> low >> high && port >= low && port <= high;
}

}  // namespace

std::optional<Peer> Peer::parse(const std::string& text) {
  Peer peer;
  const bool is_bracketed = text.starts_with('[');
  const auto end = is_bracketed ? text.find(']') : std::min(text.rfind(':'), text.size());
  if (end == text.npos) return std::nullopt;
  peer.host = is_bracketed ? text.substr(1, end - 1) : text.substr(0, end);
  const auto rest = text.substr(is_bracketed ? end + 1 : end);
  const bool is_address_alone = !is_bracketed && peer.host.find(':') != peer.host.npos;
  if (peer.host.empty() || is_address_alone) return std::nullopt;  // IPv6 needs its brackets
  if (rest.empty()) return peer;
  const auto* const last = rest.data() + rest.size();
  const auto parsed = std::from_chars(rest.data() + 1, last, peer.port);
  if (rest.front() != ':' || parsed.ec != std::errc() || parsed.ptr != last || peer.port < 1 ||
      peer.port > 65535)
    return std::nullopt;
  return peer;
}

std::vector<Peer> parse_peers(const std::vector<std::string>& texts) {
  std::vector<Peer> peers;
  std::vector<std::string> problems;
  for (const auto& text : texts) {
    if (auto peer = Peer::parse(text)) {
      peers.push_back(std::move(*peer));
    } else {
      problems.push_back(format("'{}' is no host and port", printable(text)));
    }
  }
  if (!problems.empty())
    throw UsageError::all("doctor", "--peers cannot be used:", problems,
                          "write host:port, or host to see only whether its name resolves");
  return peers;
}

Finding port_finding(int port, const std::string& root) {
  const auto name = format("port {}", port);
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (socket.get() < 0 ||
      ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(socket.get(), 1) != 0) {
    const int reason = errno;
    return {State::kProblem, name, format("a store cannot listen there: {}", std::strerror(reason)),
            reason == EACCES ? "take a port above 1023"
                             : format("another job or program has it (ss -ltnp 'sport = :{}'); end "
                                      "that, or take another --master_port",
                                      port)};
  }
  if (is_ephemeral(port, root)) {
    return {State::kAdvice, name, "free, but in the ephemeral port range of the kernel",
            "take a --master_port below net.ipv4.ip_local_port_range: it may be taken when the "
            "job starts"};
  }
  return {State::kOk, name, "free"};
}

Finding clock_finding(const std::string& peer, const ClockDifference& clock) {
  const double off = std::abs(clock.ahead_s);
  const auto found =
      format("{} (+-{:.2f} ms), round trip {:.2f} ms",
             off <= clock.uncertain_s ? std::string("the same as here")
                                      : format("{:.{}f} s {} this one", off, off < 1 ? 4 : 1,
                                               clock.ahead_s > 0 ? "ahead of" : "behind"),
             1e3 * clock.uncertain_s, 1e3 * clock.round_trip_s);
  const auto name = format("clock of {}", peer);
  const char* fix = "let chrony or ntpd set the clock on both hosts (chronyc tracking)";
  if (off >= kCredentials) {
    return {State::kProblem, name, found,
            format("{}: credentials of Slurm, Kerberos and TLS are refused", fix)};
  }
  if (off >= kLogs) {
    return {State::kAdvice, name, found,
            format("{}: lines of their logs cannot be put in order", fix)};
  }
  return {State::kOk, name, found};
}

NetworkFindings::NetworkFindings(const std::vector<Peer>& peers, Steady::time_point deadline)
    : deadline_(deadline),
      own_name_(comm::host_name()),
      own_([name = own_name_] { return own_name_finding(name); }),
      peers_(peers) {
  for (const auto& peer : peers_) {
    answers_.emplace_back([peer, deadline] { return peer_findings(peer, deadline); });
  }
}

std::vector<Finding> NetworkFindings::wait() {
  std::vector<Finding> findings;
  const char* slow = "look at the name servers in /etc/resolv.conf: each start of a job asks them";
  const auto own = own_.get_until(deadline_);
  findings.push_back(own ? *own
                         : Finding{State::kProblem, "host name",
                                   format("{} did not resolve in time", own_name_), slow});
  for (size_t i = 0; i < peers_.size(); ++i) {
    // The last answers arrive at the deadline itself.
    const auto answer = answers_[i].get_until(deadline_ + std::chrono::milliseconds(100));
    if (answer) {
      findings.insert(findings.end(), answer->begin(), answer->end());
    } else {
      findings.push_back({State::kProblem, format("peer {}", peers_[i].host),
                          "its name did not resolve in time", slow});
    }
  }
  return findings;
}

}  // namespace fleet::tool
