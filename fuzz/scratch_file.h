// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "fuzz/target.h"

namespace fleet::fuzz {

/// A folder for the files of one process; removed at its end.
const std::filesystem::path& scratch_folder();

/// A file with the input, for readers that take a path.
///
///   static ScratchFile file("list.txt");
///   ImageList::load(file.write(bytes));
class ScratchFile {
 public:
  /// Folders in `name` are made.
  explicit ScratchFile(const std::string& name);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  /// Replaces what it holds.
  const std::filesystem::path& write(std::string_view text) const;
  const std::filesystem::path& write(Bytes bytes) const { return write(text_of(bytes)); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace fleet::fuzz
