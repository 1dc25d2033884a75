#include "fleet/io/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet {
namespace {

constexpr size_t kChunk = size_t{1} << 20;  // hashed while it is in the cache

}  // namespace

NewFile::NewFile(std::filesystem::path path, std::string_view area)
    : path_(std::move(path)), area_(area) {
  static std::atomic<int> count = 0;
  do {  // not mkstemp, whose files are their owner's alone
    name_ = format("{}.{}-{}.new", path_.string(), getpid(), ++count);
    file_ = open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (file_ < 0 && errno == EEXIST);
  if (file_ < 0) fail("cannot make a file beside");
}

NewFile::~NewFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(name_.c_str());
}

void NewFile::write(const void* data, size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto done = ::write(file_, next, std::min(bytes, kChunk));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("cannot write");
    hash_.add(next, static_cast<size_t>(done));
    next += done;
    bytes -= static_cast<size_t>(done);
  }
}

uint64_t NewFile::take_its_place() {
  if (fsync(file_) != 0) fail("cannot sync");
  if (rename(name_.c_str(), path_.c_str()) != 0) fail("cannot rename to");
  close(std::exchange(file_, -1));
  sync_folder(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
  return hash_.value();
}

void NewFile::fail(const char* what) const {
  throw Error(area_,
              format("{} {}: {}", what, path_.string(), std::generic_category().message(errno)),
              "check the folder, its permissions and the room on its disk");
}

uint64_t write_new_file(const std::filesystem::path& path, std::string_view text,
                        std::string_view area) {
  NewFile file(path, area);
  file.write(text.data(), text.size());
  return file.take_its_place();
}

void sync_folder(const std::filesystem::path& folder) {
  const int directory = open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (directory < 0) return;  // some file systems do not open folders
  fsync(directory);
  close(directory);
}

}  // namespace fleet
