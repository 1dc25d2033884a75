// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "fleet/core/process/descriptor.h"
#include "fleet/core/xx_hash64.h"

namespace fleet {

/// A file that replaces its path atomically: written beside it under a hidden name and renamed by
/// `commit`; removed without one. A reader of the path sees the old file or the complete new one,
/// also after a power cut. A symbolic link stays, and its target is replaced. Anything but a
/// regular file (a pipe, /dev/null) is written in place.
///
///   AtomicFile file("notes.json", "notes");   // "notes": the area of errors
///   file.write(text.data(), text.size());
///   const uint64_t hash = file.commit();
class AtomicFile {
 public:
  AtomicFile(std::filesystem::path path, std::string_view area);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  /// For a library that writes by itself; such bytes are not in the hash.
  int descriptor() const { return file_.get(); }
  /// Returns the XXH64 of what was written.
  uint64_t commit();
  /// The same without waiting for the disk, for data that can be regenerated.
  uint64_t commit_unsynced();

 private:
  uint64_t replace();
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  std::string area_;
  std::string name_;  // beside it; empty: not a regular file
  Descriptor file_;
  XxHash64 hash_;
};

/// Writes a complete file; returns its XXH64.
uint64_t write_file_atomically(const std::filesystem::path& path, std::string_view text,
                               std::string_view area);

/// The fix of an error about a write that has failed with this errno.
std::string_view fix_of_write_error(int error);

/// What a path means when symbolic links at its end are followed, whether their target is there or
/// not.
std::filesystem::path link_target(std::filesystem::path path);

/// Makes what was created, renamed or removed in a folder survive a power cut.
void sync_folder(const std::filesystem::path& folder);

}  // namespace fleet
