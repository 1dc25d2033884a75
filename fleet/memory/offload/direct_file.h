// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace fleet::memory {

/// An unnamed temporary file that bypasses the page cache (O_DIRECT), which would otherwise take
/// the memory that offloading is to save. Where the file system has no direct I/O, pages are
/// dropped from the cache as soon as they are written or read, and one warning is logged.
///
/// Not thread-safe. Failures are an Error with sizes, directory and reason.
class DirectFile {
 public:
  static constexpr int64_t kBlock = 4096;  // direct I/O moves whole ones, from aligned memory
  static int64_t whole_blocks(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

  enum class Mode { kDirect, kPageCache };

  /// `directory` empty: $TMPDIR, else /tmp. `buffer_bytes`: staging for memory that is not aligned
  /// to a block, charged to the memory budget.
  DirectFile(std::string directory, int64_t buffer_bytes, Mode mode);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// `offset` is a multiple of kBlock, and whole_blocks(bytes) from there are the caller's. Ends
  /// early, without an error, when `interrupted` is set meanwhile.
  void write(const char* data, int64_t bytes, int64_t offset, const std::atomic<bool>& interrupted);
  void read(char* data, int64_t bytes, int64_t offset, const std::atomic<bool>& interrupted);

  const std::string& directory() const { return directory_; }
  int descriptor() const { return file_; }

 private:
  void write_block(const char* data, int64_t bytes, int64_t offset);
  void read_block(char* data, int64_t bytes, int64_t offset);
  void warn_page_cache() const;
  [[noreturn]] void fail(const char* what, int64_t bytes, int64_t offset, const std::string& why,
                         const char* fix) const;

  std::string directory_;
  int file_ = -1;
  bool is_direct_ = false;
  int64_t buffer_bytes_;
  char* buffer_ = nullptr;
};

}  // namespace fleet::memory
