// SPDX-License-Identifier: Apache-2.0
#include "fuzz/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "tests/data/temporary_folder.h"

namespace fleet::fuzz {

const std::filesystem::path& scratch_folder() {
  static const TemporaryFolder folder;
  static const auto path = folder.path();
  return path;
}

ScratchFile::ScratchFile(const std::string& name) : path_(scratch_folder() / name) {
  std::filesystem::create_directories(path_.parent_path());
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  require(file_ >= 0, "a scratch file can be made");
}

ScratchFile::~ScratchFile() { ::close(file_); }

const std::filesystem::path& ScratchFile::write(std::string_view text) const {
  const bool is_written = ::ftruncate(file_, 0) == 0 &&
                          ::pwrite(file_, text.data(), text.size(), 0) == std::ssize(text);
  require(is_written, "a scratch file can be written");
  return path_;
}

}  // namespace fleet::fuzz
