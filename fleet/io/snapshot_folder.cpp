#include "fleet/io/snapshot_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <system_error>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/io/new_file.h"
#include "fleet/io/xx_hash64.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kHidden = ".step-";
constexpr const char* kHashes = "checksums.xxh64";
constexpr size_t kHashDigits = 16;

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail(std::string_view what, const fs::path& path, const std::string& why) {
  throw Error("snapshot", format("{} {}: {}", what, path.string(), why),
              "check the folder, its permissions and the room on its disk");
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return {};
  int64_t step = 0;
  const auto* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0) return {};
  return snapshot_folder("", step) == name ? std::optional(step) : std::nullopt;
}

void for_each_folder(const fs::path& dir, const std::function<void(const std::string&)>& see) {
  std::error_code error;
  for (fs::directory_iterator item(dir, error), end; !error && item != end; item.increment(error)) {
    if (item->is_directory()) see(item->path().filename().string());
  }
}

// Whoever holds the lock finds only leftovers of the dead.
void remove_leftovers(const fs::path& dir) {
  std::vector<std::string> names;
  for_each_folder(dir, [&](const std::string& name) {
    if (name.starts_with(kHidden)) names.push_back(name);
  });
  for (const auto& name : names) {
    log::info("snapshot", format("removes {}, which was never finished", (dir / name).string()));
    fs::remove_all(dir / name);
  }
}

// A folder is removed in one rename, so that half of one is never taken for a snapshot.
void remove_snapshot(const fs::path& dir, int64_t step) {
  const auto hidden = NewSnapshot::hidden(dir, step);
  if (rename(snapshot_folder(dir, step).c_str(), hidden.c_str()) != 0) {
    fail("cannot remove", snapshot_folder(dir, step), reason(errno));
  }
  fs::remove_all(hidden);
}

std::string file_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) fail("cannot read", path, reason(errno));
  return text;
}

std::optional<uint64_t> parsed_hash(std::string_view digits) {
  uint64_t hash = 0;
  const auto* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, hash, 16);
  const bool is_whole = error == std::errc() && stop == end && XxHash64::text(hash) == digits;
  return is_whole ? std::optional(hash) : std::nullopt;
}

}  // namespace

fs::path snapshot_folder(const fs::path& dir, int64_t step) {
  return dir / format("{}{:08}", kPrefix, step);
}

std::vector<int64_t> snapshots_in(const fs::path& dir) {
  std::vector<int64_t> steps;
  for_each_folder(dir, [&](const std::string& name) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  });
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

fs::path NewSnapshot::hidden(const fs::path& dir, int64_t step) {
  return dir / format("{}{:08}", kHidden, step);
}

NewSnapshot::NewSnapshot(fs::path dir, int64_t step) : dir_(std::move(dir)), step_(step) {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) fail("cannot make", dir_, error.message());
  lock_ = open((dir_ / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) fail("cannot lock", dir_, reason(errno));
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const bool is_taken = errno == EWOULDBLOCK;
    const auto why = reason(errno);
    close(lock_);
    if (!is_taken) fail("cannot lock", dir_, why);
    throw Error("snapshot",
                format("another run is writing a snapshot into {}, and they would be mixed up",
                       dir_.string()),
                "give each run a --snapshot_dir of its own");
  }
  try {
    remove_leftovers(dir_);
    fs::create_directory(hidden());
  } catch (const fs::filesystem_error& failure) {
    close(lock_);
    fail("cannot prepare", hidden(), failure.code().message());
  }
}

NewSnapshot::~NewSnapshot() {
  std::error_code ignored;  // there is nobody to tell; the next snapshot tries again
  fs::remove_all(hidden(), ignored);
  close(lock_);  // and so unlocks
}

void NewSnapshot::publish(const FileHashes& files) {
  std::string list;
  for (const auto& [name, hash] : files) {
    if (!fs::exists(hidden() / name)) {
      throw Error("snapshot",
                  format("{} was written by its rank, and is not in {}", name, hidden().string()),
                  "give a --snapshot_dir that all ranks see, on a file system that they share");
    }
    list += format("{}  {}\n", XxHash64::text(hash), name);
  }
  write_new_file(hidden() / kHashes, list, "snapshot");
  sync_folder(hidden());
  const auto place = snapshot_folder(dir_, step_);
  // What may be there already changes places, and is removed with what is hidden.
  const unsigned how = fs::exists(place) ? RENAME_EXCHANGE : 0;
  if (renameat2(AT_FDCWD, hidden().c_str(), AT_FDCWD, place.c_str(), how) != 0) {
    fail("cannot rename to", place, reason(errno));
  }
  sync_folder(dir_);
}

void remove_older_snapshots(const fs::path& dir, int64_t step, int keep) {
  int kept = 0;
  for (const int64_t own : snapshots_in(dir)) {
    if (own <= step && ++kept > keep) remove_snapshot(dir, own);
  }
}

SnapshotReader::SnapshotReader(const fs::path& dir, int64_t step)
    : folder_(snapshot_folder(dir, step)) {
  if (!fs::exists(folder_ / kHashes)) refuse(kHashes, "it is missing");
  const auto list = file_text(folder_ / kHashes);
  for (std::string_view text = list; !text.empty();) {
    const auto line = text.substr(0, text.find('\n'));
    const auto hash = parsed_hash(line.substr(0, kHashDigits));
    const bool is_whole = line.size() < text.size() && hash && line.size() > kHashDigits + 2 &&
                          line.substr(kHashDigits, 2) == "  ";
    if (!is_whole) refuse(kHashes, format("line {} is damaged", files_.size() + 1));
    files_[std::string(line.substr(kHashDigits + 2))] = *hash;
    text.remove_prefix(line.size() + 1);
  }
}

fs::path SnapshotReader::checked(const std::string& name) const {
  const auto found = files_.find(name);
  if (found == files_.end()) refuse(kHashes, format("it does not list {}", name));
  const auto path = folder_ / name;
  if (!fs::exists(path)) refuse(name, "it is missing");
  if (XxHash64::of_file(path) != found->second) {
    refuse(name, format("it is damaged: it does not have the hash that {} gives", kHashes));
  }
  return path;
}

std::string SnapshotReader::text_of(const std::string& name) const {
  return file_text(checked(name));
}

void SnapshotReader::refuse(const std::string& file, const std::string& what) const {
  throw Error("snapshot", format("{}: {}", (folder_ / file).string(), what),
              "the snapshot before it is used, if there is one");
}

}  // namespace fleet
