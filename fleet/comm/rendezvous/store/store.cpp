// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#include "fleet/comm/rendezvous/store/store.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fleet/comm/rendezvous/network_address.h"
#include "fleet/comm/rendezvous/store/store_client.h"
#include "fleet/comm/rendezvous/store/store_server.h"
#include "fleet/comm/rendezvous/wait_notice.h"
#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::comm {

struct Store::State {
  c10::intrusive_ptr<c10d::Store> store;
  std::string address;  // for messages: "10.0.0.1:29500" or "memory"
  uint16_t port = 0;
  std::chrono::milliseconds timeout{};
  std::string prefix = {};
};

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kRetryEvery{100};

std::string seconds(milliseconds time) {
  return format("{:.3g} s", static_cast<double>(time.count()) / 1000.0);
}

// c10d logs a warning with a stack trace for each failed attempt, so the wait happens here, and
// c10d connects only when the host listens.
void wait_for_listener(const std::string& host, uint16_t port, milliseconds timeout,
                       WaitNotice* notice) {
  const auto deadline = Clock::now() + timeout;
  const auto addresses = resolve(host, port);
  const auto name = format("{}:{}", host, port);
  std::string reason;
  while (true) {
    for (const auto& address : addresses) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      const auto opened =
          connect_to(address, std::clamp(left, milliseconds(1), milliseconds(1000)));
      if (opened.socket) return;
      reason = opened.reason;
    }
    if (Clock::now() + kRetryEvery >= deadline) break;
    if (notice != nullptr) notice->log_if_due(format("the store at {} ({})", name, reason));
    std::this_thread::sleep_for(kRetryEvery);
  }
  throw StoreUnreachable(
      format("nothing answers at {} after {} ({}), so this process cannot join the job", name,
             seconds(timeout), reason),
      "check that torchrun runs on the first node, that MASTER_ADDR and MASTER_PORT name "
      "it, and that no firewall is between",
      reason);
}

// Binds to the first of the name's addresses that this machine has; an Error gives the reason.
Descriptor listen_at(const std::string& bind_to, NetworkAddress& bound, uint16_t port) {
  int error = EADDRNOTAVAIL;
  for (const auto& address : resolve(bind_to, port)) {
    Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    bound.size = NetworkAddress::kMaxBytes;
    if (socket && ::bind(socket.get(), address.generic(), address.size) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0 &&
        ::getsockname(socket.get(), bound.generic(), &bound.size) == 0) {
      return socket;
    }
    error = errno;
  }
  throw Error(
      "comm",
      format("cannot host the store at {}:{} ({})", printable(bind_to), port, std::strerror(error)),
      error == EADDRINUSE ? "another job may still run there: end it, or use another port"
                          : "use an address of this machine and a port above 1023");
}

// c10d logs a stack trace before it throws, and our error replaces it. The log level is global to
// the process: it is restored when no store call is in flight, and a level that the user has set
// (TORCH_CPP_LOG_LEVEL) stays.
class QuietScope {
 public:
  QuietScope() {
    const std::lock_guard lock(mutex());
    if (calls()++ == 0 && std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr)
      saved() = std::exchange(FLAGS_caffe2_log_level, kErrorsOnly);
  }
  ~QuietScope() {
    const std::lock_guard lock(mutex());
    if (--calls() == 0 && saved()) FLAGS_caffe2_log_level = *std::exchange(saved(), std::nullopt);
  }
  QuietScope(const QuietScope&) = delete;
  QuietScope& operator=(const QuietScope&) = delete;

 private:
  static constexpr int kErrorsOnly = 2;
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static int& calls() {
    static int calls = 0;
    return calls;
  }
  static std::optional<int>& saved() {
    static std::optional<int> saved;
    return saved;
  }
};

// Runs one call on the store and turns c10d's exceptions, which carry stack traces, into ours.
template <typename Call>
auto guarded(const std::string& address, milliseconds timeout, std::string_view doing,
             const std::string& key, Call call) {
  const QuietScope quiet;
  try {
    return call();
  } catch (const c10::DistStoreError&) {
    throw Error("comm",
                format("waited {} for '{}' in the store at {}, and no process has set it",
                       seconds(timeout), key, address),
                "a rank may have ended or not started: see the log of every rank");
  } catch (const c10::Error& error) {
    std::string reason = error.what_without_backtrace();
    reason.resize(std::min(reason.find('\n'), reason.size()));
    throw Error("comm",
                format("lost the store at {} while {} '{}' ({})", address, doing, key, reason),
                "the process that hosts it (fleetrun, or rank 0) has ended: see its output");
  }
}

}  // namespace

Store Store::host(uint16_t port, milliseconds timeout, const std::string& bind_to,
                  const std::string& key) {
  NetworkAddress bound;
  const auto server = std::make_shared<StoreServer>(listen_at(bind_to, bound, port), key);
  port = bound.port();
  const auto own = bind_to == "0.0.0.0" ? std::string("127.0.0.1") : bound.text();
  const auto address = format("{}:{}", own, port);
  auto client = connect_to_store({.addresses = resolve(own, port), .name = address, .key = key},
                                 timeout, nullptr, server);
  return Store(std::make_shared<State>(State{std::move(client), address, port, timeout}));
}

Store Store::connect(const std::string& host, uint16_t port, milliseconds timeout,
                     const std::string& key, WaitNotice* notice) {
  const auto address = format("{}:{}", printable(host), port);
  return Store(std::make_shared<State>(
      State{connect_to_store({.addresses = resolve(host, port), .name = address, .key = key},
                             timeout, notice),
            address, port, timeout}));
}

Store Store::connect_to_torchrun(const std::string& host, uint16_t port, milliseconds timeout,
                                 WaitNotice* notice) {
  wait_for_listener(host, port, timeout, notice);
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = timeout;
  const auto address = format("{}:{}", host, port);
  return guarded(address, timeout, "greeting", "it", [&] {
    return Store(std::make_shared<State>(
        State{c10::make_intrusive<c10d::TCPStore>(host, options), address, port, timeout}));
  });
}

Store Store::in_memory(milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(timeout);
  return over(std::move(store));
}

Store Store::over(c10::intrusive_ptr<c10d::Store> store) {
  const auto timeout = store->getTimeout();
  return Store(std::make_shared<State>(State{std::move(store), "memory", 0, timeout}));
}

Store Store::prefixed(std::string_view prefix) const {
  State state = *state_;
  state.store = c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), state_->store);
  state.prefix = format("{}{}{}", state.prefix, state.prefix.empty() ? "" : "/", prefix);
  return Store(std::make_shared<State>(std::move(state)));
}

Store Store::duplicate() const {
  return guarded(state_->address, state_->timeout, "opening", "another connection", [&] {
    State state = *state_;
    state.store = state_->store->clone();
    return Store(std::make_shared<State>(std::move(state)));
  });
}

uint16_t Store::port() const { return state_->port; }

void Store::set(const std::string& key, std::string_view value) {
  guarded(state_->address, state_->timeout, "setting", key,
          [&] { state_->store->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
}

std::string Store::get(const std::string& key) {
  return guarded(state_->address, state_->timeout, "getting", key, [&] {
    const auto bytes = state_->store->get(key);
    return std::string(bytes.begin(), bytes.end());
  });
}

std::optional<std::string> Store::try_get(const std::string& key) {
  const bool there = guarded(state_->address, state_->timeout, "looking for", key,
                             [&] { return state_->store->check({key}); });
  if (!there) return std::nullopt;
  return get(key);
}

int64_t Store::add(const std::string& key, int64_t amount) {
  return guarded(state_->address, state_->timeout, "adding to", key,
                 [&] { return state_->store->add(key, amount); });
}

std::string Store::claim(const std::string& key, const std::string& value) {
  return guarded(state_->address, state_->timeout, "claiming", key,
                 [&] { return state_->store->compareSet(key, "", value); });
}

void Store::remove(const std::string& key) {
  guarded(state_->address, state_->timeout, "removing", key,
          [&] { state_->store->deleteKey(key); });
}

bool Store::wait_for(const std::string& key, milliseconds timeout) {
  return guarded(state_->address, timeout, "waiting for", key, [&] {
    try {
      state_->store->wait({key}, timeout);
      return true;
    } catch (const c10::DistStoreError&) {
      return false;
    }
  });
}

const std::string& Store::prefix() const { return state_->prefix; }

const c10::intrusive_ptr<c10d::Store>& Store::raw() const { return state_->store; }

}  // namespace fleet::comm
