// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_folder.h"

#include <fcntl.h>

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
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/xx_hash64.h"
#include "fleet/io/atomic_file.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kHidden = ".step-";
constexpr std::string_view kAside = ".replaced-step-";
constexpr const char* kHashes = "checksums.xxh64";
constexpr size_t kHashDigits = 16;

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail(std::string_view what, const fs::path& path, const std::string& why) {
  throw Error("snapshot", format("{} {}: {}", what, path.string(), why),
              "check the folder, its permissions and the room on its disk");
}

std::string step_text(std::string_view prefix, int64_t step) {
  return format("{}{:08}", prefix, step);
}

std::optional<int64_t> step_of(const std::string& name, std::string_view prefix = kPrefix) {
  if (!name.starts_with(prefix)) return {};
  int64_t step = 0;
  const auto* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0) return {};
  return step_text(prefix, step) == name ? std::optional(step) : std::nullopt;
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

// What cannot be removed now, such as files that NFS keeps open, goes with the next snapshot.
void remove_later(const fs::path& folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

// A folder is removed in one rename, so that half of one is never taken for a snapshot.
void remove_snapshot(const fs::path& dir, int64_t step) {
  const auto hidden = dir / format("{}.removed", step_text(kHidden, step));
  if (rename(snapshot_folder(dir, step).c_str(), hidden.c_str()) != 0) {
    fail("cannot remove", snapshot_folder(dir, step), reason(errno));
  }
  remove_later(hidden);
}

int exchange_folders(const fs::path& a, const fs::path& b) {
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0 ? 0 : errno;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) != 0) fail("cannot rename to", to, reason(errno));
}

// `place` is there already.
void replace_folder(const fs::path& hidden, const fs::path& place, const fs::path& aside,
                    const PublishOptions& options) {
  const int error =
      options.exchange ? options.exchange(hidden, place) : exchange_folders(hidden, place);
  if (error == 0) return;  // the old one is removed with what is hidden
  // What kernels and file systems say that cannot exchange, NFS among them.
  if (error != EINVAL && error != ENOSYS && error != EOPNOTSUPP) {
    fail("cannot rename to", place, reason(error));
  }
  rename_folder(place, aside);
  sync_folder(place.parent_path());
  if (options.between_renames) options.between_renames();
  if (rename(hidden.c_str(), place.c_str()) != 0) {
    const auto why = reason(errno);
    rename_folder(aside, place);
    fail("cannot rename to", place, why);
  }
  sync_folder(place.parent_path());
  remove_later(aside);
}

// The hidden folder of a step with all of its files: its list of hashes is written last.
std::optional<fs::path> complete_hidden(const fs::path& dir, int64_t step) {
  std::optional<fs::path> found;
  for_each_folder(dir, [&](const std::string& name) {
    if (name.starts_with(step_text(kHidden, step) + ".") && fs::exists(dir / name / kHashes)) {
      found = dir / name;
    }
  });
  return found;
}

std::string file_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) fail("cannot read", path, reason(errno));
  return text;
}

// Of a file in the folder itself.
bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos;
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
  return dir / step_text(kPrefix, step);
}

std::vector<int64_t> snapshots_in(const fs::path& dir) {
  std::vector<int64_t> steps;
  for_each_folder(dir, [&](const std::string& name) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  });
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

fs::path NewSnapshot::hidden(const fs::path& dir, int64_t step, int64_t generation) {
  return dir / format("{}.{}", step_text(kHidden, step), generation);
}

NewSnapshot::NewSnapshot(FolderLock& lock, int64_t step) : lock_(lock), step_(step) {
  const auto& dir = lock_.folder();
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) fail("cannot make", dir, error.message());
  lock_.hold();
  generation_ = lock_.generation();
  try {
    finish_interrupted(dir);
    remove_leftovers(dir);
    fs::create_directory(hidden());
  } catch (const fs::filesystem_error& failure) {
    fail("cannot prepare", hidden(), failure.code().message());
  }
}

NewSnapshot::~NewSnapshot() { remove_later(hidden()); }

void NewSnapshot::publish(const FileHashes& files, const PublishOptions& options) {
  std::string list;
  for (const auto& [name, hash] : files) {
    if (!fs::exists(hidden() / name)) {
      throw Error("snapshot",
                  format("{} was written by its rank, and is not in {}", name, hidden().string()),
                  "give a --snapshot_dir that all ranks see, on a file system that they share");
    }
    list += format("{}  {}\n", XxHash64::text(hash), name);
  }
  write_file_atomically(hidden() / kHashes, list, "snapshot");
  sync_folder(hidden());
  const auto& dir = lock_.folder();
  const auto place = snapshot_folder(dir, step_);
  lock_.hold();
  if (fs::exists(place)) {
    replace_folder(hidden(), place, dir / step_text(kAside, step_), options);
  } else {
    rename_folder(hidden(), place);
  }
  sync_folder(dir);
}

bool has_interrupted(const fs::path& dir) {
  bool is_there = false;
  for_each_folder(dir, [&](const std::string& name) { is_there |= name.starts_with(kAside); });
  return is_there;
}

void finish_interrupted(const fs::path& dir) {
  std::vector<int64_t> steps;
  for_each_folder(dir, [&](const std::string& name) {
    if (const auto step = step_of(name, kAside)) steps.push_back(*step);
  });
  for (const int64_t step : steps) {
    const auto aside = dir / step_text(kAside, step), place = snapshot_folder(dir, step);
    if (!fs::exists(place)) {
      const auto next = complete_hidden(dir, step);
      log::info("snapshot", format("completes {}, whose writer died while it replaced an older one",
                                   place.string()));
      rename_folder(next.value_or(aside), place);
      sync_folder(dir);
    }
    remove_later(aside);
  }
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
    const std::string name(is_whole ? line.substr(kHashDigits + 2) : "");
    if (!is_file_name(name) || !files_.emplace(name, *hash).second)
      refuse(kHashes, format("line {} is damaged", files_.size() + 1));
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
  throw Error("snapshot", format("{}: {}", (folder_ / file).string(), what));
}

}  // namespace fleet
