#include "fleet/io/xx_hash64.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet {
namespace {

template <typename Word>
uint64_t word_at(const unsigned char* data) {
  Word word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

}  // namespace

uint64_t XxHash64::round(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

void XxHash64::add_blocks(const unsigned char* data, size_t blocks) {
  auto lanes = lanes_;  // in registers
  for (; blocks > 0; --blocks, data += kBlock) {
    for (size_t i = 0; i < lanes.size(); ++i) {
      lanes[i] = round(lanes[i], word_at<uint64_t>(data + 8 * i));
    }
  }
  lanes_ = lanes;
}

void XxHash64::add(const void* data, size_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  const size_t waiting = bytes_ % kBlock;
  bytes_ += bytes;
  if (waiting > 0) {
    const size_t taken = std::min(bytes, kBlock - waiting);
    std::copy_n(next, taken, rest_.begin() + static_cast<std::ptrdiff_t>(waiting));
    next += taken;
    bytes -= taken;
    if (waiting + taken < kBlock) return;
    add_blocks(rest_.data(), 1);
  }
  add_blocks(next, bytes / kBlock);
  std::copy_n(next + bytes / kBlock * kBlock, bytes % kBlock, rest_.begin());
}

uint64_t XxHash64::value() const {
  uint64_t hash = kPrime5;
  if (bytes_ >= kBlock) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += bytes_;
  const auto* next = rest_.data();
  size_t left = bytes_ % kBlock;
  for (; left >= 8; left -= 8, next += 8) {
    hash = std::rotl(hash ^ round(0, word_at<uint64_t>(next)), 27) * kPrime1 + kPrime4;
  }
  for (; left >= 4; left -= 4, next += 4) {
    hash = std::rotl(hash ^ (word_at<uint32_t>(next) * kPrime1), 23) * kPrime2 + kPrime3;
  }
  for (; left > 0; --left, ++next) hash = std::rotl(hash ^ (*next * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

std::string XxHash64::text(uint64_t value) { return format("{:016x}", value); }

uint64_t XxHash64::of_file(const std::filesystem::path& path) {
  const auto fail = [&] {
    throw Error("io",
                format("cannot read {}: {}", path.string(), std::generic_category().message(errno)),
                "check the path, its permissions and the disk");
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail();
  std::vector<char> buffer(size_t{1} << 20);
  XxHash64 hash;
  ssize_t got = 0;
  while ((got = read(file, buffer.data(), buffer.size())) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      close(file);
      errno = error;
      fail();
    }
    hash.add(buffer.data(), static_cast<size_t>(got));
  }
  close(file);
  return hash.value();
}

}  // namespace fleet
