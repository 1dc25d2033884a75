#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace fleet {

/// XXH64 with seed 0, as the specification of xxHash gives it: `xxhsum -H64` says the same of a
/// file. Finds damage, at the speed of memory; not for secrets.
///
///   XxHash64 hash;
///   hash.add(data, bytes);
///   log(XxHash64::text(hash.value()));   // "44bc2cf5ad770999"
class XxHash64 {
 public:
  void add(const void* data, size_t bytes);
  /// Of all that was added so far.
  uint64_t value() const;

  static std::string text(uint64_t value);
  static uint64_t of_file(const std::filesystem::path& file);

 private:
  static constexpr size_t kBlock = 32;
  static constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
  static constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
  static constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
  static constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
  static constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;

  static uint64_t round(uint64_t lane, uint64_t word);
  void add_blocks(const unsigned char* data, size_t blocks);

  std::array<uint64_t, 4> lanes_ = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  std::array<unsigned char, kBlock> rest_ = {};  // the first `bytes_ % kBlock` are in use
  uint64_t bytes_ = 0;
};

}  // namespace fleet
