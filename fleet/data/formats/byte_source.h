// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

namespace fleet {

/// The bytes of a file in order, decompressed. A file that cannot be read, or whose compressed data
/// are damaged, is an Error that names it.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// Fills `out` as far as the content goes; less than `count` only at its end.
  virtual uint64_t read(uint8_t* out, uint64_t count) = 0;

  /// No more than this can come out in total.
  virtual uint64_t most() const = 0;
};

/// Inflates a file whose name ends in ".gz".
///
///   const auto source = open_bytes("train.txt.gz");
///   const uint64_t got = source->read(buffer.data(), buffer.size());
std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path);

}  // namespace fleet
