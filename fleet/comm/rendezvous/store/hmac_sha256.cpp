// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/store/hmac_sha256.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>

namespace fleet::comm {
namespace {

constexpr size_t kBlock = 64;

constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// FIPS 180-4, section 6.2; the names are the standard's.
class Sha256 {
 public:
  void add(std::string_view text) {
    length_ += text.size();
    for (const char c : text) {
      block_[filled_++] = static_cast<uint8_t>(c);
      if (filled_ == kBlock) compress();
    }
  }

  Digest finish() {
    const uint64_t bits = length_ * 8;
    add(std::string_view("\x80", 1));
    while (filled_ != kBlock - 8) add(std::string_view("\0", 1));
    for (int shift = 56; shift >= 0; shift -= 8) {
      block_[filled_++] = static_cast<uint8_t>(bits >> static_cast<unsigned>(shift));
    }
    compress();
    Digest digest{};
    for (size_t i = 0; i < digest.size(); ++i) {
      digest[i] = static_cast<uint8_t>(hash_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return digest;
  }

 private:
  void compress() {
    filled_ = 0;
    std::array<uint32_t, 64> w{};
    for (size_t t = 0; t < 16; ++t) {
      w[t] = static_cast<uint32_t>(block_[4 * t]) << 24U |
             static_cast<uint32_t>(block_[4 * t + 1]) << 16U |
             static_cast<uint32_t>(block_[4 * t + 2]) << 8U | block_[4 * t + 3];
    }
    using std::rotr;
    for (size_t t = 16; t < 64; ++t) {
      const uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ w[t - 15] >> 3U;
      const uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ w[t - 2] >> 10U;
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = hash_;
    for (size_t t = 0; t < 64; ++t) {
      const uint32_t s1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRounds[t] + w[t];
      const uint32_t s0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + t1;
      d = c;
      c = b;
      b = a;
      a = t1 + t2;
    }
    const std::array<uint32_t, 8> worked = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < hash_.size(); ++i) hash_[i] += worked[i];
  }

  std::array<uint32_t, 8> hash_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, kBlock> block_{};
  size_t filled_ = 0;
  uint64_t length_ = 0;
};

}  // namespace

Digest sha256(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.finish();
}

Digest hmac_sha256(std::string_view key, std::string_view text) {
  std::string padded(key.size() > kBlock ? view(sha256(key)) : key);
  padded.resize(kBlock, '\0');
  const auto mixed_with = [&](char pad) {
    std::string mixed = padded;
    std::transform(mixed.begin(), mixed.end(), mixed.begin(),
                   [pad](char c) { return static_cast<char>(c ^ pad); });
    return mixed;
  };
  Sha256 inner;
  inner.add(mixed_with('\x36'));
  inner.add(text);
  Sha256 outer;
  outer.add(mixed_with('\x5c'));
  outer.add(view(inner.finish()));
  return outer.finish();
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned differing = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differing |= static_cast<unsigned>(static_cast<uint8_t>(a[i]) ^ static_cast<uint8_t>(b[i]));
  }
  return differing == 0;
}

}  // namespace fleet::comm
