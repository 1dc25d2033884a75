// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

constexpr size_t kChunk = size_t{1} << 20;  // hashed while it is in the cache

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, std::string_view area)
    : path_(link_target(std::move(path))), area_(area) {
  std::error_code none;
  const auto status = std::filesystem::status(path_, none);
  if (std::filesystem::is_other(status)) {
    file_ = Descriptor(open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file_) fail("cannot write");
    return;
  }
  if (std::filesystem::is_directory(status)) {
    errno = EISDIR;
    fail("cannot write");
  }
  static std::atomic<int> count = 0;
  do {  // not mkstemp, whose files are their owner's alone
    const auto name = format(".{}.{}-{}.new", path_.filename().string(), getpid(), ++count);
    name_ = (path_.parent_path() / name).string();
    file_ = Descriptor(open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  } while (!file_ && errno == EEXIST);
  if (!file_) fail("cannot write");
}

AtomicFile::~AtomicFile() {
  if (!file_) return;
  file_ = Descriptor();
  if (!name_.empty()) unlink(name_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto done = ::write(file_.get(), next, std::min(bytes, kChunk));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("cannot write");
    hash_.add(next, static_cast<size_t>(done));
    next += done;
    bytes -= static_cast<size_t>(done);
  }
}

uint64_t AtomicFile::commit() {
  if (name_.empty()) return replace();
  if (fsync(file_.get()) != 0) fail("cannot sync");
  const auto hash = replace();
  sync_folder(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
  return hash;
}

uint64_t AtomicFile::commit_unsynced() { return replace(); }

uint64_t AtomicFile::replace() {
  // Some network file systems report what they could not write when a file is closed.
  const bool is_written = close(file_.release()) == 0;
  if (name_.empty() && is_written) return hash_.value();
  if (is_written && rename(name_.c_str(), path_.c_str()) == 0) return hash_.value();
  const int error = errno;
  if (!name_.empty()) unlink(name_.c_str());
  errno = error;
  fail(is_written ? "cannot rename to" : "cannot write");
}

void AtomicFile::fail(const char* what) const {
  const int error = errno;
  throw Error(area_,
              format("{} {}: {}", what, path_.string(), std::generic_category().message(error)),
              fix_of_write_error(error));
}

std::string_view fix_of_write_error(int error) {
  if (error == EFBIG) return "raise the limit of file sizes: ulimit -f unlimited";
  return "check the folder, its permissions and the room on its disk";
}

uint64_t write_file_atomically(const std::filesystem::path& path, std::string_view text,
                               std::string_view area) {
  AtomicFile file(path, area);
  file.write(text.data(), text.size());
  return file.commit();
}

std::filesystem::path link_target(std::filesystem::path path) {
  constexpr int kMaxLinks = 40;  // as the kernel has it
  std::error_code error;
  for (int i = 0; i < kMaxLinks; ++i) {
    if (!std::filesystem::is_symlink(std::filesystem::symlink_status(path, error))) break;
    const auto target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = target.is_absolute() ? target : path.parent_path() / target;
  }
  return path;
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor directory(open(folder.c_str(), O_RDONLY | O_CLOEXEC));
  if (directory) fsync(directory.get());  // some file systems do not open folders
}

}  // namespace fleet
