// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/doctor_folder.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/offload/offload_file.h"

#include "tools/fleet/background.h"

namespace fleet::tool {
namespace {

namespace fs = std::filesystem;
using State = Finding::State;
using Steady = std::chrono::steady_clock;

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;
constexpr int64_t kFirstBytes = 4 * kMiB, kMaxBytes = 64 * kMiB;
constexpr double kProbeSeconds = 0.4;  // about so long for what is written, and for what is read
// Parameters with Adam's state in fp32, and three snapshots at once: --keep 2 and the next one.
constexpr int64_t kBytesPerParameter = 12, kSnapshotsAtOnce = 3;

enum class Where { kLocal, kNetwork, kMemory };

struct FileSystem {
  long type;
  const char* name;
  Where where;
};

// Of statfs(2) and linux/magic.h; those that are not there are of their own projects.
constexpr FileSystem kFileSystems[] = {
    {0xEF53, "ext4", Where::kLocal},         {0x58465342, "XFS", Where::kLocal},
    {0x9123683E, "Btrfs", Where::kLocal},    {0x2FC12FC1, "ZFS", Where::kLocal},
    {0xF2F52010, "F2FS", Where::kLocal},     {0x794C7630, "overlay", Where::kLocal},
    {0x01021994, "tmpfs", Where::kMemory},   {0x858458F6, "ramfs", Where::kMemory},
    {0x6969, "NFS", Where::kNetwork},        {0xFF534D42, "CIFS", Where::kNetwork},
    {0xFE534D42, "SMB", Where::kNetwork},    {0x0BD00BD0, "Lustre", Where::kNetwork},
    {0x47504653, "GPFS", Where::kNetwork},   {0x00C36400, "Ceph", Where::kNetwork},
    {0x19830326, "BeeGFS", Where::kNetwork}, {0x01021997, "9p", Where::kNetwork},
    {0x65735546, "FUSE", Where::kNetwork},
};

const FileSystem* known(long type) {
  const auto* const found = std::ranges::find(kFileSystems, type, &FileSystem::type);
  return found == std::end(kFileSystems) ? nullptr : found;
}

const char* name_of(FolderUse use) { return use == FolderUse::kSnapshots ? "snapshot" : "offload"; }

fs::path nearest_existing(fs::path folder) {
  std::error_code ignored;
  folder = fs::absolute(folder, ignored);
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

// A file that has no name at any time, or at once none any more.
Descriptor unnamed_file(const fs::path& folder) {
  Descriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.get() >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  auto name = (folder / ".fleet-doctor-XXXXXX").string();
  file = Descriptor(::mkostemp(name.data(), O_CLOEXEC));
  if (file.get() >= 0) ::unlink(name.c_str());
  return file;
}

struct Speed {
  double write = 0, read = 0;  // bytes per second
  std::string failure = {};
};

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

// As a snapshot is written: through the page cache, and synced. Read without it where that can be.
Speed write_and_read(const Descriptor& file, int64_t bytes) {
  constexpr int64_t kBlock = kMiB, kAlignment = 4096;
  const std::unique_ptr<char, Free> block(
      static_cast<char*>(std::aligned_alloc(kAlignment, static_cast<size_t>(kBlock))));
  std::memset(block.get(), 0x5A, static_cast<size_t>(kBlock));
  const auto failed = [](const char* what) {
    return Speed{.failure = format("{}: {}", what, std::strerror(errno))};
  };
  auto start = Steady::now();
  for (int64_t at = 0; at < bytes; at += kBlock) {
    if (::pwrite(file.get(), block.get(), static_cast<size_t>(kBlock), at) != kBlock)
      return failed("writing fails");
  }
  if (::fsync(file.get()) != 0) return failed("fsync fails");
  const double write_seconds = seconds_since(start);
  const bool is_direct = ::fcntl(file.get(), F_SETFL, ::fcntl(file.get(), F_GETFL) | O_DIRECT) == 0;
  if (!is_direct) (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  start = Steady::now();
  for (int64_t at = 0; at < bytes; at += kBlock) {
    if (::pread(file.get(), block.get(), static_cast<size_t>(kBlock), at) != kBlock)
      return failed("reading fails");
  }
  const double read_seconds = seconds_since(start);
  if (is_direct) ::fcntl(file.get(), F_SETFL, ::fcntl(file.get(), F_GETFL) & ~O_DIRECT);
  const auto rate = [&](double seconds) {
    return static_cast<double>(bytes) / std::max(seconds, 1e-9);
  };
  return {.write = rate(write_seconds), .read = rate(read_seconds)};
}

Speed offload_speed(const fs::path& folder, int64_t bytes) {
  try {
    memory::OffloadFile file({.directory = folder.string()});
    const auto speed = file.measure(bytes);
    return {.write = speed.write, .read = speed.read};
  } catch (const Error& error) {
    return {.failure = error.what()};
  }
}

// A little first; then as much as takes about kProbeSeconds.
Speed measure(FolderUse use, const fs::path& folder, const Descriptor& file) {
  const auto once = [&](int64_t bytes) {
    return use == FolderUse::kSnapshots ? write_and_read(file, bytes)
                                        : offload_speed(folder, bytes);
  };
  const auto first = once(kFirstBytes);
  if (!first.failure.empty()) return first;
  const auto slower = std::min(first.write, first.read);
  const auto bytes =
      std::min(kMaxBytes, static_cast<int64_t>(slower * kProbeSeconds) / kMiB * kMiB);
  return bytes <= kFirstBytes ? first : once(bytes);
}

Finding speed_finding(FolderUse use, const Speed& speed) {
  const auto name = format("{} disk", name_of(use));
  if (!speed.failure.empty()) {
    return {State::kProblem, name, speed.failure, "give a folder on a disk that works, with room"};
  }
  constexpr double kMega = 1e6;
  const auto found = format("{:.0f} MB/s written{}, {:.0f} MB/s read", speed.write / kMega,
                            use == FolderUse::kSnapshots ? " and synced" : "", speed.read / kMega);
  if (use == FolderUse::kSnapshots && speed.write < 50 * kMega) {
    return {State::kAdvice, name, found,
            format("save less often (--save_every), or on a quicker disk: a snapshot of 1 GB takes "
                   "{:.0f} s, and the next one waits for it",
                   1e9 / speed.write)};
  }
  if (use == FolderUse::kOffload && std::min(speed.write, speed.read) < 200 * kMega) {
    return {State::kAdvice, name, found,
            "point TMPDIR to a local NVMe disk, or train without enable_offload: steps would wait "
            "for this one"};
  }
  return {State::kOk, name, found};
}

std::vector<Finding> probe(FolderUse use, const fs::path& asked) {
  const auto name = format("{} folder", name_of(use));
  const auto folder = nearest_existing(asked);
  std::error_code ignored;
  const bool is_there = fs::equivalent(folder, asked, ignored);
  if (!fs::is_directory(folder, ignored)) {
    return {{State::kProblem, name, format("{} is no folder", folder.string()),
             "give the path of a folder"}};
  }
  if (use == FolderUse::kOffload && !is_there) {  // which no program makes
    return {{State::kProblem, name, format("{} is not there", asked.string()),
             format("mkdir -p {}, or point TMPDIR to a folder that is there", asked.string())}};
  }
  const auto place = is_there
                         ? asked.string()
                         : format("{} (not there yet; {} is)", asked.string(), folder.string());
  const auto file = unnamed_file(folder);
  if (file.get() < 0) {
    return {{State::kProblem, name, format("{} cannot be written: {}", place, std::strerror(errno)),
             "give a folder that this user may write to, on a disk that is not read-only"}};
  }
  struct statvfs room {};
  struct statfs system {};
  if (::fstatvfs(file.get(), &room) != 0 || ::fstatfs(file.get(), &system) != 0) {
    return {{State::kProblem, name, format("{}: {}", place, std::strerror(errno)),
             "give another folder"}};
  }
  const auto left = static_cast<int64_t>(room.f_bavail) * static_cast<int64_t>(room.f_frsize);
  auto finding = file_system_finding(use, static_cast<long>(system.f_type));
  finding.found = format("{}: {}, {} free", place, finding.found, byte_size_text(left));
  if (use == FolderUse::kSnapshots) {
    finding.found += format(", enough for {} million parameters with Adam's state",
                            left / (kBytesPerParameter * kSnapshotsAtOnce) / 1'000'000);
  }
  if (left < kGiB || (room.f_files > 0 && room.f_favail < 100)) {
    finding.state = left < 2 * kMaxBytes ? State::kProblem : State::kAdvice;
    finding.fix = "make room on this disk, or give another folder";
    if (finding.state == State::kProblem) return {finding};
  }
  return {finding, speed_finding(use, measure(use, folder, file))};
}

}  // namespace

std::string file_system_name(long type) {
  const auto* const system = known(type);
  return system ? system->name : format("type {:#x}", type);
}

Finding file_system_finding(FolderUse use, long type) {
  Finding finding{State::kOk, format("{} folder", name_of(use)), file_system_name(type)};
  const auto* const system = known(type);
  if (system == nullptr || system->where == Where::kLocal) return finding;
  finding.state = State::kAdvice;
  if (use == FolderUse::kOffload) {
    finding.fix = system->where == Where::kMemory
                      ? "point TMPDIR to a disk: what is offloaded here takes the very memory that "
                        "it is to save"
                      : "point TMPDIR to a local disk: every step would go over the network";
  } else if (system->where == Where::kMemory) {
    finding.fix = "save on a disk: the content is lost when the machine restarts";
  } else {  // all ranks see it, which several machines need
    finding.state = State::kOk;
    finding.found +=
        ", over the network: all nodes see it; a sync waits for the server, and "
        "other nodes may see a new snapshot seconds later";
  }
  return finding;
}

std::vector<Finding> folder_findings(FolderUse use, const fs::path& folder,
                                     Steady::time_point deadline) {
  Background<std::vector<Finding>> background([use, folder] { return probe(use, folder); });
  if (auto findings = background.get_until(deadline)) return *findings;
  return {{State::kProblem, format("{} folder", name_of(use)),
           format("{} does not answer in time", folder.string()),
           "see whether its server is there (df, dmesg), or give another folder"}};
}

}  // namespace fleet::tool
