// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/store/store_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <list>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "fleet/comm/rendezvous/network_address.h"
#include "fleet/comm/rendezvous/store/job_key.h"
#include "fleet/comm/rendezvous/store/store_table.h"
#include "fleet/comm/rendezvous/store/store_wire.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kHandshakeTimeout = 30s;       // enough for a rank that is stopped for a moment
constexpr size_t kMaxUnauthenticated = 1024;  // beyond it the oldest is closed
constexpr auto kWithoutDescriptors = 100ms;
constexpr size_t kReadBytes = 65536;

/// Why a connection ends; empty: not worth a warning.
struct Closed {
  std::string reason;
};

/// One client. States: kHello -> kProof -> kOpen; a `wait` only in kOpen.
struct Connection {
  enum class State { kHello, kProof, kOpen };

  Descriptor socket;
  std::string peer;
  Clock::time_point accepted = Clock::now();
  State state = State::kHello;
  wire::Nonces nonces = {};
  wire::Channel incoming = {};
  wire::Channel outgoing = {};
  std::string received = {};
  std::string to_send = {};
  std::optional<StoreTable::Wait> wait = {};
  Clock::time_point wait_ends = {};
  bool has_ended = false;

  bool is_authenticated() const { return state == State::kOpen; }
};

}  // namespace

class StoreServer::Loop {
 public:
  Loop(Descriptor listener, std::string key)
      : listener_(std::move(listener)), key_(std::move(key)), stop_(::eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::thread([this] { run(); });
  }

  ~Loop() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

 private:
  void run();
  void accept_all();
  void serve(Connection& connection, short events);
  void read_from(Connection& connection);
  void advance(Connection& connection);
  void greet(Connection& connection);
  void check_proof(Connection& connection);
  void handle(Connection& connection, const std::string& request);
  void reply(Connection& connection, const std::string& answer);
  void send_to(Connection& connection);
  void finish_waits();
  void drop_late_and_ended();
  void warn_of(const Connection& connection, const std::string& reason);
  int poll_timeout() const;

  const Descriptor listener_;
  const std::string key_;
  const Descriptor stop_;
  StoreTable table_;
  std::list<Connection> connections_;  // oldest first
  Clock::time_point accept_after_ = Clock::now();
  uint64_t refused_ = 0;
  std::thread thread_;
};

void StoreServer::Loop::run() {
  while (true) {
    std::vector<pollfd> sockets = {{stop_.get(), POLLIN, 0}};
    const bool accepts = Clock::now() >= accept_after_;
    sockets.push_back({accepts ? listener_.get() : -1, POLLIN, 0});
    std::vector<Connection*> polled;
    for (auto& connection : connections_) {
      const bool wants_out = !connection.to_send.empty();
      sockets.push_back(
          {connection.socket.get(), static_cast<short>(POLLIN | (wants_out ? POLLOUT : 0)), 0});
      polled.push_back(&connection);
    }
    if (::poll(sockets.data(), sockets.size(), poll_timeout()) < 0 && errno != EINTR) return;
    if (sockets[0].revents != 0) return;
    for (size_t i = 0; i < polled.size(); ++i) {
      if (sockets[i + 2].revents != 0) serve(*polled[i], sockets[i + 2].revents);
    }
    if (sockets[1].revents != 0) accept_all();
    finish_waits();
    drop_late_and_ended();
  }
}

int StoreServer::Loop::poll_timeout() const {
  auto next = Clock::now() + 1s;
  for (const auto& connection : connections_) {
    if (connection.wait) next = std::min(next, connection.wait_ends);
  }
  if (accept_after_ > Clock::now()) next = std::min(next, accept_after_);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

void StoreServer::Loop::accept_all() {
  while (true) {
    NetworkAddress peer{.size = NetworkAddress::kMaxBytes};
    Descriptor socket(
        ::accept4(listener_.get(), peer.generic(), &peer.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // Such as out of descriptors: the connection stays in the kernel's queue.
      if (errno != EAGAIN) accept_after_ = Clock::now() + kWithoutDescriptors;
      return;
    }
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    connections_.push_back({.socket = std::move(socket), .peer = peer.text()});
  }
}

void StoreServer::Loop::serve(Connection& connection, short events) {
  try {
    if ((events & POLLOUT) != 0) send_to(connection);
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(connection);
    advance(connection);
  } catch (const Closed& closed) {
    connection.has_ended = true;
    if (!closed.reason.empty()) warn_of(connection, closed.reason);
  } catch (const std::invalid_argument& error) {
    connection.has_ended = true;
    warn_of(connection, format("it sent {}", error.what()));
  }
}

void StoreServer::Loop::read_from(Connection& connection) {
  std::array<char, kReadBytes> buffer{};
  const auto most =
      connection.is_authenticated() ? buffer.size() : wire::kHelloBytes + wire::kProofBytes;
  const auto got = ::recv(connection.socket.get(), buffer.data(), most, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    const bool sent_hello = connection.state == Connection::State::kProof;
    throw Closed{sent_hello ? "it left without the proof of having the job's key" : ""};
  }
  connection.received.append(buffer.data(), static_cast<size_t>(got));
  // Clients send one request at a time.
  if (connection.received.size() > 2 * wire::kMaxBytes) throw Closed{"it sent too much"};
}

void StoreServer::Loop::advance(Connection& connection) {
  if (connection.state == Connection::State::kHello) greet(connection);
  if (connection.state == Connection::State::kProof) check_proof(connection);
  while (connection.is_authenticated() && !connection.wait) {
    const auto request = connection.incoming.open(connection.received);
    if (!request) return;
    handle(connection, *request);
  }
}

void StoreServer::Loop::greet(Connection& connection) {
  auto& received = connection.received;
  const auto known = std::min(received.size(), wire::kMagic.size());
  if (received.substr(0, known) != wire::kMagic.substr(0, known)) {
    throw Closed{"it uses another protocol"};
  }
  if (received.size() < wire::kHelloBytes) return;
  connection.nonces = {received.substr(wire::kMagic.size(), wire::kNonceBytes),
                       random_bytes(wire::kNonceBytes)};
  received.erase(0, wire::kHelloBytes);
  connection.state = Connection::State::kProof;
  connection.to_send = std::string(wire::kMagic) + connection.nonces.server +
                       wire::proof(key_, wire::Side::kServer, connection.nonces);
  send_to(connection);
}

void StoreServer::Loop::check_proof(Connection& connection) {
  auto& received = connection.received;
  if (received.size() < wire::kProofBytes) return;
  const auto expected = wire::proof(key_, wire::Side::kClient, connection.nonces);
  if (!equal_in_constant_time(received.substr(0, wire::kProofBytes), expected)) {
    throw Closed{"it does not have the job's key"};
  }
  received.erase(0, wire::kProofBytes);
  connection.incoming = {key_, wire::Side::kClient, connection.nonces};
  connection.outgoing = {key_, wire::Side::kServer, connection.nonces};
  connection.state = Connection::State::kOpen;
}

void StoreServer::Loop::handle(Connection& connection, const std::string& request) {
  auto outcome = table_.handle(request);
  if (!outcome.wait) return reply(connection, outcome.answer);
  if (table_.has_all(outcome.wait->keys) || outcome.wait->limit.count() == 0) {
    return reply(connection, table_.answer(*outcome.wait));
  }
  connection.wait_ends = Clock::now() + outcome.wait->limit;
  connection.wait = std::move(outcome.wait);
}

void StoreServer::Loop::reply(Connection& connection, const std::string& answer) {
  connection.to_send += connection.outgoing.seal(answer);
  send_to(connection);
}

void StoreServer::Loop::send_to(Connection& connection) {
  auto& rest = connection.to_send;
  while (!rest.empty()) {
    const auto sent = ::send(connection.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) throw Closed{};
    rest.erase(0, static_cast<size_t>(sent));
  }
}

// After a reply the client's next request is handled, which may end other waits.
void StoreServer::Loop::finish_waits() {
  bool again = true;
  while (std::exchange(again, false)) {
    for (auto& connection : connections_) {
      if (!connection.wait || connection.has_ended) continue;
      const auto& wait = *connection.wait;
      if (!table_.has_all(wait.keys) && Clock::now() < connection.wait_ends) continue;
      const auto answer = table_.answer(wait);
      connection.wait.reset();
      again = true;
      try {
        reply(connection, answer);
        serve(connection, 0);
      } catch (const Closed&) {
        connection.has_ended = true;
      }
    }
  }
}

void StoreServer::Loop::drop_late_and_ended() {
  auto unproved = static_cast<size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const Connection& connection) { return !connection.is_authenticated(); }));
  for (auto it = connections_.begin(); it != connections_.end();) {
    const bool is_late =
        !it->is_authenticated() &&
        (unproved > kMaxUnauthenticated || Clock::now() - it->accepted > kHandshakeTimeout);
    if (is_late && !it->has_ended) {
      --unproved;
      warn_of(*it, "it did not prove to have the job's key in time");
    }
    if (is_late || it->has_ended) {
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
}

void StoreServer::Loop::warn_of(const Connection& connection, const std::string& reason) {
  if (!std::has_single_bit(++refused_)) return;
  log::warn_here("store", format("closed a connection from {}: {}{}", connection.peer, reason,
                                 refused_ == 1 ? "" : format(" ({} such so far)", refused_)));
}

StoreServer::StoreServer(Descriptor listening_socket, std::string key)
    : loop_(std::make_unique<Loop>(std::move(listening_socket), std::move(key))) {}

StoreServer::~StoreServer() = default;

}  // namespace fleet::comm
