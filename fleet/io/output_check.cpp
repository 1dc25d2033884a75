// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/output_check.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>

#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/io/atomic_file.h"

namespace fleet {
namespace {

// A disk that has filled up while the job ran may have room again: where the launcher has restarted
// the job, no room is a failure like any other, after which it tries once more.
bool room_may_come() {
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return restarts != nullptr && std::string_view(restarts) != "0";
}

// Starting again does not help: the command line names a place that cannot be written.
bool is_mistake(int error) {
  if (error == ENOSPC || error == EDQUOT) return !room_may_come();
  constexpr std::array kMistakes = {EACCES,       EEXIST, EFBIG,   EINVAL, EISDIR, ELOOP,
                                    ENAMETOOLONG, ENOENT, ENOTDIR, EPERM,  EROFS};
  return std::ranges::find(kMistakes, error) != kMistakes.end();
}

[[noreturn]] void fail_to_write(const OutputPlace& place, const std::filesystem::path& path,
                                int error) {
  const auto text = format("{}: cannot write {}: {}", place.flag, path.string(),
                           std::generic_category().message(error));
  const auto fix =
      error == EFBIG
          ? std::string(fix_of_write_error(error))
          : format("give a {} that this user can write, on a disk with room", place.flag);
  if (is_mistake(error)) throw UsageError(place.area, text, fix);
  throw Error(place.area, text, fix);
}

// No check of permission bits would do: a disk may be read-only, full, or a server away. `name`: of
// the file to come, empty for a folder; AtomicFile will add as much to it as is added here.
void probe(const OutputPlace& place, const std::filesystem::path& folder, const std::string& name) {
  static std::atomic<int> count = 0;
  const auto path = folder / format(".{}.fleet-probe-{}-{}", name, ::getpid(), ++count);
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) fail_to_write(place, errno == ENAMETOOLONG ? folder / name : folder, errno);
  const std::array<char, 4096> bytes{};
  auto written = ::write(file.get(), bytes.data(), bytes.size());
  if (written >= 0 && written < std::ssize(bytes)) {  // the rest fails, and says why
    const auto rest = bytes.size() - static_cast<size_t>(written);
    const auto more = ::write(file.get(), bytes.data(), rest);
    written = more < 0 ? -1 : written + more;
    if (more >= 0 && written < std::ssize(bytes)) errno = ENOSPC;
  }
  const bool is_written = written == std::ssize(bytes) && ::fsync(file.get()) == 0;
  const int error = errno;
  file = Descriptor();  // before unlink: NFS would rename an open file
  ::unlink(path.c_str());
  if (!is_written) fail_to_write(place, folder, error);
}

void make_and_probe(const OutputPlace& place, const std::filesystem::path& folder,
                    const std::string& name = "") {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && !std::filesystem::is_directory(folder)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) fail_to_write(place, folder, error.value());
  probe(place, folder, name);
}

// Where both are there, device and inode; else what the path comes to.
bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  struct stat first {
  }, second{};
  const bool has_first = ::stat(a.c_str(), &first) == 0;
  const bool has_second = ::stat(b.c_str(), &second) == 0;
  if (has_first != has_second) return false;
  if (has_first) return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
  std::error_code none;
  return std::filesystem::weakly_canonical(link_target(a), none) ==
         std::filesystem::weakly_canonical(link_target(b), none);
}

// What this process has still to write, by flag.
struct Demand {
  dev_t disk = 0;
  int64_t bytes = 0;
};
class Demands {
 public:
  /// Of other flags, on the disk.
  std::map<std::string, Demand> beside(std::string_view flag, dev_t disk) {
    const std::lock_guard lock(mutex_);
    auto others = by_flag_;
    std::erase_if(others,
                  [&](const auto& item) { return item.first == flag || item.second.disk != disk; });
    return others;
  }
  void set(std::string_view flag, Demand demand) {
    const std::lock_guard lock(mutex_);
    by_flag_[std::string(flag)] = demand;
  }
  void forget(std::string_view flag) {
    const std::lock_guard lock(mutex_);
    by_flag_.erase(std::string(flag));
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Demand> by_flag_;
};

Demands& demands() {
  static Demands all;
  return all;
}

// Any number of outputs may go to /dev/null.
bool is_no_file(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::is_other(std::filesystem::status(path, none));
}

}  // namespace

void check_output_folder(const OutputPlace& folder) { make_and_probe(folder, folder.path); }

void check_output_file(const OutputPlace& file, int64_t bytes) {
  const auto path = link_target(file.path);
  if (std::filesystem::is_directory(path)) fail_to_write(file, path, EISDIR);
  if (is_no_file(path)) {
    if (::access(path.c_str(), W_OK) != 0) fail_to_write(file, path, errno);
    return;
  }
  if (!path.has_filename()) fail_to_write(file, path, EISDIR);
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  make_and_probe(file, folder, path.filename().string());
  if (bytes == 0) return;
  check_file_size_limit(file, bytes, path.filename().string());
  check_room({folder, file.flag, file.area}, bytes, path.filename().string());
}

void check_room(const OutputPlace& folder, int64_t bytes, std::string_view what) {
  struct statvfs status {};
  if (::statvfs(folder.path.c_str(), &status) != 0) fail_to_write(folder, folder.path, errno);
  const auto blocks = ::geteuid() == 0 ? status.f_bfree : status.f_bavail;
  const auto room = static_cast<int64_t>(blocks) * static_cast<int64_t>(status.f_frsize);
  struct stat place {};
  if (::stat(folder.path.c_str(), &place) != 0) fail_to_write(folder, folder.path, errno);
  int64_t rest = room - bytes;
  std::string besides;
  for (const auto& [flag, demand] : demands().beside(folder.flag, place.st_dev)) {
    rest -= demand.bytes;
    besides += format(", {} {}", flag, byte_size_text(demand.bytes));
  }
  if (rest >= 0) {
    demands().set(folder.flag, {place.st_dev, bytes});
    return;
  }
  const auto text =
      format("{}: {} takes {}{}, and the disk of {} has {} left", folder.flag, what,
             byte_size_text(bytes), besides, folder.path.string(), byte_size_text(room));
  const auto fix = format("make room there, or give a {} on another disk", folder.flag);
  if (is_mistake(ENOSPC)) throw UsageError(folder.area, text, fix);
  throw Error(folder.area, text, fix);
}

void check_file_size_limit(const OutputPlace& place, int64_t bytes, std::string_view what) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (static_cast<rlim_t>(bytes) <= limit.rlim_cur) return;
  throw UsageError(
      place.area,
      format("{}: {} takes {}, and a file of this process may have {} (ulimit -f)", place.flag,
             what, byte_size_text(bytes), byte_size_text(static_cast<int64_t>(limit.rlim_cur))),
      fix_of_write_error(EFBIG));
}

void output_written(std::string_view flag) { demands().forget(flag); }

void check_overwrites_nothing(const std::vector<OutputPlace>& outputs,
                              const std::vector<InputFile>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& output = outputs[i];
    if (output.path.empty() || is_no_file(output.path)) continue;
    for (const auto& input : inputs) {
      if (input.path.empty() || !is_same_file(output.path, input.path)) continue;
      throw UsageError(output.area,
                       format("{} {} is {} ({}) itself, which would be lost", output.flag,
                              output.path.string(), input.what, input.path.string()),
                       format("give another {}", output.flag));
    }
    for (size_t j = 0; j < i; ++j) {
      const auto& other = outputs[j];
      if (other.path.empty() || !is_same_file(output.path, other.path)) continue;
      throw UsageError(output.area,
                       format("{} and {} are the same file, {}: one would be lost", other.flag,
                              output.flag, output.path.string()),
                       format("give another {}", output.flag));
    }
  }
}

}  // namespace fleet
