// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct XXH64_state_s;  // of xxhash.h, which users of Fleet need not have

namespace fleet {

/// XXH64 with seed 0 of libxxhash: `xxhsum -H64` prints the same for a file. Detects damage at
/// memory bandwidth, and is a fingerprint of what should be equal on all ranks or after a restart;
/// not a cryptographic hash.
///
///   XxHash64 hash;
///   hash.add(data, bytes);
///   log(XxHash64::text(hash.value()));   // "44bc2cf5ad770999"
class XxHash64 {
 public:
  XxHash64();

  void add(const void* data, size_t bytes);
  /// Of all that was added so far.
  uint64_t value() const;

  static std::string text(uint64_t value);
  static uint64_t of(const void* data, size_t bytes);
  static uint64_t of(std::string_view text) { return of(text.data(), text.size()); }
  static uint64_t of_file(const std::filesystem::path& file);

 private:
  struct Free {
    void operator()(XXH64_state_s* state) const;
  };
  std::unique_ptr<XXH64_state_s, Free> state_;
};

}  // namespace fleet
