// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "fleet/data/text/vocabulary.h"
#include "fleet/io/atomic_file.h"

namespace fleet {

/// Writes samples as lines of four fields (text_samples.h), packed if the name ends in ".gz".
///
/// The file grows beside its place and takes it in `finish`; without that, nothing is left of it
/// (io/atomic_file.h).
///
///   TokenFile file("train_data/part-0.txt.gz", vocabulary);
///   file.write(first, second);
///   file.finish();
class TokenFile {
 public:
  TokenFile(std::filesystem::path path, const Vocabulary& vocabulary);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  /// Sentences without special tokens, the second following the first; it may be empty.
  void write(std::span<const int64_t> first, std::span<const int64_t> second);
  void finish();

 private:
  [[noreturn]] void fail() const;

  std::filesystem::path path_;
  AtomicFile beside_;
  int64_t start_, separator_;
  void* file_ = nullptr;  // gzFile, on a descriptor of its own
  std::string line_;
};

}  // namespace fleet
