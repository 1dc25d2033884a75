// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/lock_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "fleet/comm/rendezvous/host_id.h"
#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/process/process_state.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet {
namespace {

constexpr std::string_view kLockName = ".lock.";
constexpr std::string_view kMemberName = ".member.";
constexpr std::string_view kUnfinishedName = ".unfinished-lock.";
constexpr std::string_view kFirstLine = "fleet lock 1";
constexpr std::string_view kLastLine = "end";

[[noreturn]] void fail_at(std::string_view what, const std::filesystem::path& path, int error) {
  throw Error("snapshot",
              format("{} {}: {}", what, path.string(), std::generic_category().message(error)),
              "check the folder, its permissions and the room on its disk");
}

std::string time_text() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::localtime_r(&now, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

template <typename Number>
bool read_number(const std::string& text, Number& number) {
  const auto* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end;
}

void for_each_name(const std::filesystem::path& folder,
                   const std::function<void(const std::string&)>& see) {
  std::error_code error;
  std::filesystem::directory_iterator item(folder, error);
  for (; !error && item != std::filesystem::directory_iterator(); item.increment(error)) {
    see(item->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail_at("cannot look into", folder, error.value());
  }
}

int64_t generation_of(const std::string& name) {
  int64_t generation = 0;
  const bool is_lock = name.starts_with(kLockName) &&
                       read_number(name.substr(kLockName.size()), generation) && generation > 0;
  return is_lock ? generation : 0;
}

/// A file with a record under a unique name; removed with the object.
class Unfinished {
 public:
  Unfinished(const std::filesystem::path& beside, const LockRecord& record) {
    static std::atomic<int> count = 0;
    path_ = beside.parent_path() / format("{}{}-{}", kUnfinishedName, record.token, ++count);
    file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file_) fail_at("cannot lock", beside.parent_path(), errno);
    const auto text = record.serialize();
    const bool is_written = ::write(file_.get(), text.data(), text.size()) == std::ssize(text) &&
                            ::fsync(file_.get()) == 0;
    if (is_written) return;
    const int error = errno;
    remove();
    fail_at("cannot lock", beside.parent_path(), error);
  }
  ~Unfinished() { remove(); }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // An answer of an NFS server that is lost makes link() report a failure of what it has done.
  bool is_linked() const {
    struct stat status {};
    return ::fstat(file_.get(), &status) == 0 && status.st_nlink > 1;
  }

 private:
  void remove() {
    file_ = Descriptor();
    ::unlink(path_.c_str());
  }

  std::filesystem::path path_;
  Descriptor file_;
};

// Where a file system has no hard links. A reader may see half of it, and waits then.
bool make_by_opening(const std::filesystem::path& path, const LockRecord& record) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file && errno == EEXIST) return false;
  if (!file) fail_at("cannot lock", path.parent_path(), errno);
  const auto text = record.serialize();
  const bool is_written =
      ::write(file.get(), text.data(), text.size()) == std::ssize(text) && ::fsync(file.get()) == 0;
  const int error = errno;
  if (is_written) return true;
  file = Descriptor();
  ::unlink(path.c_str());
  fail_at("cannot lock", path.parent_path(), error);
}

}  // namespace

LockRecord LockRecord::own() {
  return {.host = comm::host_name(),
          .host_id = comm::host_id(),
          .pid = ::getpid(),
          .started = process_state(::getpid()).started,
          .since = time_text()};
}

std::string LockRecord::text() const { return format("pid {} on {}, since {}", pid, host, since); }

std::string LockRecord::serialize() const {
  return format(
      "{}\nstate {}\nhost {}\nhost_id {}\npid {}\nstarted {}\nsince {}\njob {}\ntoken {}\n"
      "members {}\n{}\n",
      kFirstLine, is_free ? "free" : "held", host, host_id, pid, started, since, job, token,
      has_members ? 1 : 0, kLastLine);
}

std::optional<LockRecord> LockRecord::parse(const std::string& content) {
  std::istringstream lines(content);
  std::string line;
  if (!std::getline(lines, line) || line != kFirstLine) return {};
  std::map<std::string, std::string> values;
  bool is_complete = false;
  while (std::getline(lines, line)) {
    if ((is_complete = line == kLastLine)) break;
    const auto space = line.find(' ');
    if (space == line.npos) return {};
    values[line.substr(0, space)] = printable(line.substr(space + 1));
  }
  LockRecord record{.is_free = values["state"] == "free",
                    .host = values["host"],
                    .host_id = values["host_id"],
                    .since = values["since"],
                    .job = values["job"],
                    .token = values["token"],
                    .has_members = values["members"] == "1"};
  const bool is_read = read_number(values["pid"], record.pid) &&
                       read_number(values["started"], record.started) && record.pid > 0;
  return is_complete && is_read ? std::optional(record) : std::nullopt;
}

std::string random_token() {
  std::random_device random;
  return format("{:08x}{:08x}", random(), random());
}

std::filesystem::path lock_path(const std::filesystem::path& folder, int64_t generation) {
  return folder / format("{}{}", kLockName, generation);
}

std::filesystem::path member_path(const std::filesystem::path& folder, const std::string& token) {
  return folder / format("{}{}", kMemberName, token);
}

// Opening asks an NFS server for the file's state of this moment.
std::optional<LockFile> read_lock_file(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && (errno == ENOENT || errno == ESTALE || errno == ENOTDIR)) return {};
  if (!file) fail_at("cannot read", path, errno);
  LockFile result{.path = path, .generation = generation_of(path.filename().string())};
  struct stat status {};
  std::array<char, 4096> text{};
  const bool is_there = ::fstat(file.get(), &status) == 0;
  const auto length = ::read(file.get(), text.data(), text.size());
  if (!is_there) return {};
  result.touched = status.st_mtim;
  if (length > 0) result.record = LockRecord::parse({text.data(), static_cast<size_t>(length)});
  return result;
}

std::optional<LockFile> newest_lock(const std::filesystem::path& folder) {
  constexpr int kTries = 1000;
  constexpr std::chrono::milliseconds kBetween{10};
  for (int i = 0; i < kTries; ++i) {
    int64_t newest = 0;
    for_each_name(folder,
                  [&](const std::string& name) { newest = std::max(newest, generation_of(name)); });
    if (newest == 0) return {};
    if (auto file = read_lock_file(lock_path(folder, newest))) return file;
    std::this_thread::sleep_for(kBetween);  // superseded in between, or an old list of names
  }
  fail_at("cannot read the lock of", folder, ENOENT);
}

std::vector<LockFile> member_files(const std::filesystem::path& folder, const std::string& job) {
  std::vector<LockFile> files;
  for_each_name(folder, [&](const std::string& name) {
    if (!name.starts_with(kMemberName)) return;
    auto file = read_lock_file(folder / name);
    if (file && (!file->record || file->record->job == job)) files.push_back(std::move(*file));
  });
  return files;
}

bool make_lock_file(const std::filesystem::path& path, const LockRecord& record) {
  const Unfinished file(path, record);
  if (::link(file.path().c_str(), path.c_str()) == 0 || file.is_linked()) return true;
  // ENOENT: the process that has just taken the lock has removed it.
  if (errno == EEXIST || errno == ENOENT || errno == ESTALE) return false;
  return make_by_opening(path, record);
}

void replace_lock_file(const std::filesystem::path& path, const LockRecord& record) {
  const Unfinished file(path, record);
  if (::rename(file.path().c_str(), path.c_str()) != 0) fail_at("cannot write", path, errno);
}

void remove_older_locks(const std::filesystem::path& folder, int64_t generation,
                        const std::string& job) {
  std::vector<std::string> names;
  for_each_name(folder, [&](const std::string& name) {
    const auto own = generation_of(name);
    if ((own > 0 && own < generation) || name.starts_with(kUnfinishedName)) names.push_back(name);
    if (!name.starts_with(kMemberName)) return;
    const auto file = read_lock_file(folder / name);
    if (file && file->record && file->record->job != job) names.push_back(name);
  });
  for (const auto& name : names) ::unlink((folder / name).c_str());
}

HolderState holder_state(const LockRecord& record) {
  if (record.is_free) return HolderState::kDead;
  static const std::string here = comm::host_id();
  if (record.host_id != here || here.empty()) return HolderState::kUnknown;
  if (::kill(record.pid, 0) != 0 && errno == ESRCH) return HolderState::kDead;
  const auto state = process_state(record.pid);
  // Another user's process may be hidden from /proc: then it exists, and no more is known.
  if (state.letter == '\0') {
    return ::kill(record.pid, 0) != 0 && errno == ESRCH ? HolderState::kDead : HolderState::kAlive;
  }
  const bool is_other = record.started != 0 && state.started != record.started;
  return state.has_ended() || is_other ? HolderState::kDead : HolderState::kAlive;
}

HolderState holder_state(const LockFile& file) {
  return file.record ? holder_state(*file.record) : HolderState::kUnknown;
}

}  // namespace fleet
