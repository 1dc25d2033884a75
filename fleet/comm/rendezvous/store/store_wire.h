// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/comm/rendezvous/store/hmac_sha256.h"

// The protocol between the clients and the server of a store.
//
// Handshake: both prove that they have the job's key, over a random nonce of the other side, so
// that a recorded handshake cannot be replayed:
//
//   client: kMagic, nonce c                       40 bytes
//   server: kMagic, nonce s, proof("server")      72 bytes
//   client: proof("client")                       32 bytes
//
// with proof(who) = HMAC-SHA256(key, who c s). Then requests and answers alternate, each
//
//   length (4 bytes), payload, tag (16 bytes)
//
// with tag = HMAC-SHA256(a key of this connection and direction, number of the message, payload):
// a message that was changed, dropped, repeated or inserted ends the connection. Nothing is
// encrypted. A server reads at most 72 bytes before the proof.
namespace fleet::comm::wire {

constexpr std::string_view kMagic = "fleetkv1";
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr size_t kHelloBytes = kMagic.size() + kNonceBytes;
constexpr size_t kMaxBytes = 16U << 20U;  // of one payload

enum class Op : uint8_t {
  kSet = 1,     // key, value
  kGet,         // milliseconds to wait, keys -> values, once all are set
  kWait,        // milliseconds to wait, keys
  kCheck,       // keys -> yes if all are set
  kAdd,         // key, amount -> sum
  kCompareSet,  // key, expected, desired -> value
  kRemove,      // key -> yes if it was set
  kCount,       // -> number of keys
  kAppend,      // key, value
  kMultiSet     // keys, values
};

enum class Answer : uint8_t { kYes = 1, kNo = 2 };

/// The fields of a payload, one after the other.
class Writer {
 public:
  explicit Writer(Op op) { byte(static_cast<uint8_t>(op)); }
  explicit Writer(Answer answer) { byte(static_cast<uint8_t>(answer)); }

  Writer& number(int64_t value);
  Writer& text(std::string_view value);
  Writer& texts(const std::vector<std::string>& values);
  std::string take() { return std::move(payload_); }

 private:
  void byte(uint8_t value) { payload_.push_back(static_cast<char>(value)); }
  std::string payload_;
};

/// Reads them; std::invalid_argument where the payload ends too early.
class Reader {
 public:
  explicit Reader(std::string_view payload) : rest_(payload) {}

  uint8_t byte();
  int64_t number();
  std::string text();
  std::vector<std::string> texts();
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view take(size_t count);
  std::string_view rest_;
};

enum class Side { kClient, kServer };

struct Nonces {
  std::string client;
  std::string server;
};

std::string proof(std::string_view key, Side side, const Nonces& nonces);

/// One direction of a connection: `seal` on one side, `open` on the other.
class Channel {
 public:
  Channel() = default;
  Channel(std::string_view key, Side from, const Nonces& nonces);

  std::string seal(std::string_view payload);
  /// Takes the next message out of `received`; nothing while it is not complete.
  /// std::invalid_argument when it is too long, or not what the other side has sealed.
  std::optional<std::string> open(std::string& received);

 private:
  std::string tag(std::string_view payload);
  std::string key_;
  uint64_t number_ = 0;
};

}  // namespace fleet::comm::wire
