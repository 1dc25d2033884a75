#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "fleet/io/xx_hash64.h"

namespace fleet {

/// A file until it is whole: written beside its place, and gone if it never becomes so. Whoever
/// opens the path sees the old file or all of the new one, also after a power cut.
///
///   NewFile file("notes.json", "notes");   // "notes": who speaks in an error
///   file.write(text.data(), text.size());
///   const uint64_t hash = file.take_its_place();
class NewFile {
 public:
  NewFile(std::filesystem::path path, std::string_view area);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, size_t bytes);
  /// Returns the XXH64 of what was written.
  uint64_t take_its_place();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  std::string area_;
  std::string name_;
  int file_ = -1;
  XxHash64 hash_;
};

/// A whole file at once; returns its XXH64.
uint64_t write_new_file(const std::filesystem::path& path, std::string_view text,
                        std::string_view area);

/// Makes what was created, renamed or removed in a folder survive a power cut.
void sync_folder(const std::filesystem::path& folder);

}  // namespace fleet
