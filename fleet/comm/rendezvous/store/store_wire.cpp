// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/store/store_wire.h"

#include <bit>
#include <cstring>
#include <stdexcept>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::comm::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

constexpr size_t kTagBytes = 16;
constexpr size_t kLengthBytes = sizeof(uint32_t);

template <typename Number>
std::string bytes_of(Number number) {
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

template <typename Number>
Number number_in(std::string_view bytes) {
  Number number{};
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

}  // namespace

Writer& Writer::number(int64_t value) {
  payload_ += bytes_of(value);
  return *this;
}

Writer& Writer::text(std::string_view value) {
  payload_ += bytes_of(static_cast<uint32_t>(value.size()));
  payload_ += value;
  return *this;
}

Writer& Writer::texts(const std::vector<std::string>& values) {
  payload_ += bytes_of(static_cast<uint32_t>(values.size()));
  for (const auto& value : values) text(value);
  return *this;
}

std::string_view Reader::take(size_t count) {
  if (count > rest_.size()) throw std::invalid_argument("a message that ends too early");
  const auto taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

uint8_t Reader::byte() { return static_cast<uint8_t>(take(1).front()); }
int64_t Reader::number() { return number_in<int64_t>(take(sizeof(int64_t))); }
std::string Reader::text() { return std::string(take(number_in<uint32_t>(take(kLengthBytes)))); }

std::vector<std::string> Reader::texts() {
  const auto count = number_in<uint32_t>(take(kLengthBytes));
  // Each takes at least its length field, so a false count allocates nothing.
  if (count > rest_.size() / kLengthBytes) {
    throw std::invalid_argument("a message that ends too early");
  }
  std::vector<std::string> values;
  values.reserve(count);
  for (uint32_t i = 0; i < count; ++i) values.push_back(text());
  return values;
}

std::string proof(std::string_view key, Side side, const Nonces& nonces) {
  const auto* who = side == Side::kServer ? "server" : "client";
  return std::string(view(hmac_sha256(key, who + nonces.client + nonces.server)));
}

Channel::Channel(std::string_view key, Side from, const Nonces& nonces) {
  const auto* who = from == Side::kServer ? "from server" : "from client";
  key_ = view(hmac_sha256(key, who + nonces.client + nonces.server));
}

std::string Channel::tag(std::string_view payload) {
  const auto digest = hmac_sha256(key_, bytes_of(number_++).append(payload));
  return std::string(view(digest).substr(0, kTagBytes));
}

std::string Channel::seal(std::string_view payload) {
  if (payload.size() > kMaxBytes) {
    throw Error("comm", format("{} bytes are more than the store takes at once ({})",
                               payload.size(), kMaxBytes));
  }
  auto message = bytes_of(static_cast<uint32_t>(payload.size()));
  message.append(payload);
  message.append(tag(payload));
  return message;
}

std::optional<std::string> Channel::open(std::string& received) {
  if (received.size() < kLengthBytes) return std::nullopt;
  const size_t length = number_in<uint32_t>(received);
  if (length > kMaxBytes) throw std::invalid_argument("a message that is too long");
  const auto end = kLengthBytes + length + kTagBytes;
  if (received.size() < end) return std::nullopt;
  auto payload = received.substr(kLengthBytes, length);
  const auto tagged = received.substr(kLengthBytes + length, kTagBytes);
  received.erase(0, end);
  if (!equal_in_constant_time(tag(payload), tagged)) {
    throw std::invalid_argument("a message that the other side has not sent");
  }
  return payload;
}

}  // namespace fleet::comm::wire
