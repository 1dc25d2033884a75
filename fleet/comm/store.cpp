#define FMT_HEADER_ONLY 1
#include "fleet/comm/store.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

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

#include "fleet/core/error.h"
#include "fleet/core/format.h"

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

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct AddressList {
  ~AddressList() {
    if (first) freeaddrinfo(first);
  }
  addrinfo* first = nullptr;
};

// Empty when the connection was accepted, else why not.
std::string try_to_connect(const addrinfo& where, milliseconds timeout) {
  const Socket socket(
      ::socket(where.ai_family, where.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd() < 0) return std::strerror(errno);
  if (::connect(socket.fd(), where.ai_addr, where.ai_addrlen) == 0) return "";
  if (errno != EINPROGRESS) return std::strerror(errno);
  pollfd writable{socket.fd(), POLLOUT, 0};
  if (::poll(&writable, 1, static_cast<int>(timeout.count())) != 1) return "no answer";
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? "" : std::strerror(error);
}

// c10d writes a warning with a stack trace for each attempt that fails, so the waiting happens here
// and c10d is asked only when somebody listens.
void wait_for_listener(const std::string& host, uint16_t port, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::string reason;
  while (true) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    AddressList found;
    const int unknown = getaddrinfo(host.c_str(), format("{}", port).c_str(), &hints, &found.first);
    if (unknown != 0) reason = gai_strerror(unknown);
    for (const auto* at = found.first; at != nullptr; at = at->ai_next) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      reason = try_to_connect(*at, std::clamp(left, milliseconds(1), milliseconds(1000)));
      if (reason.empty()) return;
    }
    if (Clock::now() + kRetryEvery >= deadline) break;
    std::this_thread::sleep_for(kRetryEvery);
  }
  throw Error(
      "comm",
      format("nothing answers at {}:{} after {} ({}), so this process cannot join the job", host,
             port, seconds(timeout), reason),
      "check that the first node is started, that MASTER_ADDR and MASTER_PORT (or --master) "
      "name it, and that no firewall lies between");
}

// A listening socket of our own gives a plain reason when the port is taken, and lets a job on one
// machine stay off the network.
int listen_at(const std::string& bind_to, uint16_t& port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, bind_to.c_str(), &address.sin_addr) != 1)
    throw Error("comm", format("'{}' is not an IPv4 address to host the store at", bind_to));
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.fd(), generic, sizeof(address)) != 0 || ::listen(socket.fd(), SOMAXCONN) != 0)
    throw Error("comm",
                format("cannot host the store at {}:{} ({})", bind_to, port, std::strerror(errno)),
                errno == EADDRINUSE ? "another job may still run there: end it, or use another port"
                                    : "use an address of this machine and a port above 1023");
  socklen_t size = sizeof(address);
  ::getsockname(socket.fd(), generic, &size);
  port = ntohs(address.sin_port);
  return socket.release();
}

// c10d logs a stack trace before it throws, and what it throws is told better in one sentence. The
// level is the whole process's: it goes back when no store call is under way, and a level that the
// user has chosen (TORCH_CPP_LOG_LEVEL) is left alone.
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

Store Store::host(uint16_t port, milliseconds timeout, const std::string& bind_to) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.masterListenFd = listen_at(bind_to, port);
  options.port = port;
  const std::string own = bind_to == "0.0.0.0" ? "127.0.0.1" : bind_to;
  const auto address = format("{}:{}", own, port);
  return guarded(address, timeout, "starting", "it", [&] {
    return Store(std::make_shared<State>(
        State{c10::make_intrusive<c10d::TCPStore>(own, options), address, port, timeout}));
  });
}

Store Store::connect(const std::string& host, uint16_t port, milliseconds timeout) {
  wait_for_listener(host, port, timeout);
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
