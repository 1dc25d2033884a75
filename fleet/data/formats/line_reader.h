// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace fleet {

class ByteSource;

/// What lines hold. Names and numbers may hold bytes that are not UTF-8, as file names do.
enum class LineText { kNames, kProse };

/// The lines of a text file, plain or gzip. A file that is no text is a UsageError with the place
/// in it (in bytes of the unpacked text): one with a NUL byte; of prose, one where more than
/// `kMalformedShare` of the bytes, and more than a few, are not UTF-8, such as Latin-1; one with a
/// line of more than 64 MB, which could fill the memory. Fewer malformed bytes pass as they are.
///
///   LineReader lines("part-0.txt.gz");
///   for (std::string_view line; lines.next(line);) use(line);
class LineReader {
 public:
  static constexpr double kMalformedShare = 0.001;

  explicit LineReader(std::filesystem::path path, LineText text = LineText::kNames);
  ~LineReader();

  /// False at the end. The line, without its end ("\n" or "\r\n"), is good until the next call.
  bool next(std::string_view& line);

  /// Of the line that came last, from 1.
  int64_t number() const { return number_; }

 private:
  void fill();
  void check_prose(std::string_view line);
  [[noreturn]] void refuse(uint64_t byte, const std::string& what) const;

  std::filesystem::path path_;
  LineText text_;
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  size_t begin_ = 0;  // of what has not been returned yet
  bool ended_ = false;
  int64_t number_ = 0;
  uint64_t taken_ = 0;  // bytes that came from the source
  uint64_t malformed_ = 0, first_malformed_ = 0;
};

}  // namespace fleet
