// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#include "fleet/comm/rendezvous/store/store_client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fleet/comm/rendezvous/store/job_key.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/rendezvous/store/store_server.h"
#include "fleet/comm/rendezvous/store/store_wire.h"
#include "fleet/comm/rendezvous/wait_notice.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using wire::Answer;
using wire::Op;
using wire::Reader;
using wire::Writer;

constexpr milliseconds kConnectAgainEvery{100};
constexpr auto kLongestTry = 5s;         // per address, if the name has several
constexpr auto kLongestHandshake = 20s;  // a stopped server may accept and not answer
constexpr auto kMinTimeout = 60s;        // for short outages of the network

[[noreturn]] void lose(const std::string& reason) { C10_THROW_ERROR(DistNetworkError, reason); }

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

template <typename TimePoint>
int milliseconds_until(TimePoint deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - TimePoint::clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
}

class StoreClient : public c10d::Store {
 public:
  StoreClient(StoreEndpoint peer, milliseconds timeout, WaitNotice* notice,
              std::shared_ptr<StoreServer> server);
  ~StoreClient() override;
  StoreClient(const StoreClient&) = delete;
  StoreClient(StoreClient&&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  StoreClient& operator=(StoreClient&&) = delete;

  using Store::set;
  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  using Clock = std::chrono::steady_clock;

  /// Why no address could be reached; empty: connected.
  std::string connect(Clock::time_point deadline);
  void handshake(Clock::time_point deadline);

  std::string ask(const std::string& request, milliseconds waits = {});
  void send(std::string_view bytes, Clock::time_point deadline);
  /// Appends to `received_`; c10::DistNetworkError on timeout.
  void receive(Clock::time_point deadline);
  void close();

  StoreEndpoint peer_;
  std::shared_ptr<StoreServer> server_;
  std::mutex mutex_;  // guards what follows
  Descriptor socket_;
  wire::Channel outgoing_;
  wire::Channel incoming_;
  std::string received_;
};

StoreClient::StoreClient(StoreEndpoint peer, milliseconds timeout, WaitNotice* notice,
                         std::shared_ptr<StoreServer> server)
    : Store(timeout), peer_(std::move(peer)), server_(std::move(server)) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    const auto reason = connect(deadline);
    if (reason.empty()) return;
    if (Clock::now() + kConnectAgainEvery >= deadline) {
      throw StoreUnreachable(
          format("nothing answers at {} after {:.3g} s ({}), so this process cannot join "
                 "the job",
                 peer_.name, static_cast<double>(timeout.count()) / 1e3, reason),
          "check that the first node is started, that MASTER_ADDR and MASTER_PORT (or "
          "--master) name it, and that no firewall is between",
          reason);
    }
    if (notice != nullptr) notice->log_if_due(format("the store at {} ({})", peer_.name, reason));
    std::this_thread::sleep_for(kConnectAgainEvery);
  }
}

StoreClient::~StoreClient() { close(); }

void StoreClient::close() {
  Descriptor closed(std::move(socket_));
  received_.clear();
}

std::string StoreClient::connect(Clock::time_point deadline) {
  std::string reason;
  for (const auto& address : peer_.addresses) {
    const auto until = std::min(deadline, Clock::now() + kLongestTry);
    auto opened = connect_to(address, milliseconds(std::max(milliseconds_until(until), 1)));
    socket_ = std::move(opened.socket);
    reason = opened.reason;
    if (!socket_) continue;
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    try {
      handshake(std::clamp(deadline, Clock::now() + 1s, Clock::now() + kLongestHandshake));
    } catch (const c10::Error& error) {  // a stopped server, or another program's port
      reason = format("connected, then {}", error.what_without_backtrace());
    }
    if (reason.empty()) {
      peer_.addresses = {address};  // for clones
      return "";
    }
    close();
  }
  return reason;
}

void StoreClient::handshake(Clock::time_point deadline) {
  wire::Nonces nonces{.client = random_bytes(wire::kNonceBytes), .server = {}};
  send(std::string(wire::kMagic) + nonces.client, deadline);
  while (received_.size() < wire::kHelloBytes + wire::kProofBytes) {
    receive(deadline);
    const auto known = std::min(received_.size(), wire::kMagic.size());
    if (received_.substr(0, known) != wire::kMagic.substr(0, known)) {
      throw Error("comm", format("what answers at {} is not a store of Fleet's", peer_.name),
                  "another program listens there: use another port");
    }
  }
  nonces.server = received_.substr(wire::kMagic.size(), wire::kNonceBytes);
  const auto proof = received_.substr(wire::kHelloBytes, wire::kProofBytes);
  received_.erase(0, wire::kHelloBytes + wire::kProofBytes);
  if (!equal_in_constant_time(proof, wire::proof(peer_.key, wire::Side::kServer, nonces))) {
    throw Error("comm",
                format("the store at {} is another job's, or has another job key than this process "
                       "({})",
                       peer_.name, peer_.key.empty() ? "which has none" : "FLEET_JOB_KEY"),
                "give all nodes the same key (FLEET_JOB_KEY, or fleetrun --job_key_file), and "
                "another port to each job");
  }
  send(wire::proof(peer_.key, wire::Side::kClient, nonces), deadline);
  outgoing_ = {peer_.key, wire::Side::kClient, nonces};
  incoming_ = {peer_.key, wire::Side::kServer, nonces};
}

void StoreClient::send(std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      pollfd writable{socket_.get(), POLLOUT, 0};
      if (::poll(&writable, 1, milliseconds_until(deadline)) == 0) lose("it takes no requests");
    } else if (errno != EINTR) {
      lose(std::strerror(errno));
    }
  }
}

void StoreClient::receive(Clock::time_point deadline) {
  std::array<char, 65536> buffer;  // NOLINT: filled below
  while (true) {
    const auto got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got > 0) {
      received_.append(buffer.data(), static_cast<size_t>(got));
      return;
    }
    if (got == 0) lose("it has closed the connection");
    if (errno != EAGAIN && errno != EINTR) lose(std::strerror(errno));
    pollfd readable{socket_.get(), POLLIN, 0};
    if (::poll(&readable, 1, milliseconds_until(deadline)) == 0) lose("no answer");
  }
}

std::string StoreClient::ask(const std::string& request, milliseconds waits) {
  const std::lock_guard lock(mutex_);
  if (!socket_) lose("the connection was lost before");
  const auto deadline = Clock::now() + waits + std::max<milliseconds>(getTimeout(), kMinTimeout);
  try {
    send(outgoing_.seal(request), deadline);
    while (true) {
      if (auto answer = incoming_.open(received_)) return *answer;
      receive(deadline);
    }
  } catch (const std::invalid_argument& error) {
    close();
    lose(error.what());
  } catch (const c10::Error&) {
    close();
    throw;
  }
}

c10::intrusive_ptr<c10d::Store> StoreClient::clone() {
  try {
    return c10::make_intrusive<StoreClient>(peer_, timeout_, nullptr, server_);
  } catch (const Error& error) {
    lose(error.what());
  }
}

void StoreClient::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask(Writer(Op::kSet).text(key).text(text_of(value)).take());
}

std::vector<uint8_t> StoreClient::compareSet(const std::string& key,
                                             const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& desired) {
  const auto answer =
      ask(Writer(Op::kCompareSet).text(key).text(text_of(expected)).text(text_of(desired)).take());
  Reader fields(answer);
  fields.byte();
  return bytes_of(fields.text());
}

std::vector<uint8_t> StoreClient::get(const std::string& key) { return multiGet({key}).front(); }

std::vector<std::vector<uint8_t>> StoreClient::multiGet(const std::vector<std::string>& keys) {
  const auto answer = ask(Writer(Op::kGet).number(timeout_.count()).texts(keys).take(), timeout_);
  Reader fields(answer);
  if (static_cast<Answer>(fields.byte()) != Answer::kYes) {
    C10_THROW_ERROR(DistStoreError, "the key was not set in time");
  }
  std::vector<std::vector<uint8_t>> values;
  for (const auto& value : fields.texts()) values.push_back(bytes_of(value));
  if (values.size() != keys.size()) lose("an answer to another question");
  return values;
}

int64_t StoreClient::add(const std::string& key, int64_t value) {
  const auto answer = ask(Writer(Op::kAdd).text(key).number(value).take());
  Reader fields(answer);
  fields.byte();
  return fields.number();
}

bool StoreClient::deleteKey(const std::string& key) {
  const auto answer = ask(Writer(Op::kRemove).text(key).take());
  return static_cast<Answer>(Reader(answer).byte()) == Answer::kYes;
}

bool StoreClient::check(const std::vector<std::string>& keys) {
  const auto answer = ask(Writer(Op::kCheck).texts(keys).take());
  return static_cast<Answer>(Reader(answer).byte()) == Answer::kYes;
}

int64_t StoreClient::getNumKeys() {
  const auto answer = ask(Writer(Op::kCount).take());
  Reader fields(answer);
  fields.byte();
  return fields.number();
}

void StoreClient::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void StoreClient::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  const auto answer = ask(Writer(Op::kWait).number(timeout.count()).texts(keys).take(), timeout);
  if (static_cast<Answer>(Reader(answer).byte()) == Answer::kYes) return;
  C10_THROW_ERROR(DistStoreError, "the keys were not set in time");
}

void StoreClient::append(const std::string& key, const std::vector<uint8_t>& value) {
  ask(Writer(Op::kAppend).text(key).text(text_of(value)).take());
}

void StoreClient::multiSet(const std::vector<std::string>& keys,
                           const std::vector<std::vector<uint8_t>>& values) {
  std::vector<std::string> texts;
  texts.reserve(values.size());
  for (const auto& value : values) texts.push_back(text_of(value));
  ask(Writer(Op::kMultiSet).texts(keys).texts(texts).take());
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_to_store(StoreEndpoint peer, milliseconds timeout,
                                                 WaitNotice* notice,
                                                 std::shared_ptr<StoreServer> server) {
  return c10::make_intrusive<StoreClient>(std::move(peer), timeout, notice, std::move(server));
}

}  // namespace fleet::comm
