#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace fleet {

class ByteSource;

/// The lines of a text file, plain or gzip. A line of more than 64 MB is an Error, so that a file
/// which is no text cannot fill the memory.
///
///   LineReader lines("part-0.txt.gz");
///   for (std::string_view line; lines.next(line);) use(line);
class LineReader {
 public:
  explicit LineReader(std::filesystem::path path);
  ~LineReader();

  /// False at the end. The line, without its end ("\n" or "\r\n"), is good until the next call.
  bool next(std::string_view& line);

  /// Of the line that came last, from 1.
  int64_t number() const { return number_; }

 private:
  std::filesystem::path path_;
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  size_t begin_ = 0;  // of what is not yet handed out
  bool ended_ = false;
  int64_t number_ = 0;
};

}  // namespace fleet
