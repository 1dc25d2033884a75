// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/offload/direct_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"

namespace fleet::memory {
namespace {

constexpr int64_t kMaxAtOnce = int64_t{8} << 20;  // then it checks for interruption

bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % DirectFile::kBlock == 0;
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

DirectFile::DirectFile(std::string directory, int64_t buffer_bytes, Mode mode)
    : directory_(std::move(directory)),
      buffer_bytes_(whole_blocks(std::max<int64_t>(buffer_bytes, kBlock))) {
  if (directory_.empty()) {
    const char* named = std::getenv("TMPDIR");
    directory_ = named != nullptr && *named != '\0' ? named : "/tmp";
  }
  std::string name = directory_ + "/fleet-offload-XXXXXX";
  file_ = mkostemp(name.data(), O_CLOEXEC);
  if (file_ < 0)
    throw UsageError("offload", format("cannot make a file in {}: {}", directory_, reason(errno)),
                     "give a directory on a disk with room");
  unlink(name.c_str());
  is_direct_ =
      mode == Mode::kDirect && fcntl(file_, F_SETFL, fcntl(file_, F_GETFL) | O_DIRECT) == 0;
  if (!is_direct_ && mode == Mode::kDirect) warn_page_cache();
  void* pages = mmap(nullptr, static_cast<size_t>(buffer_bytes_), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (pages == MAP_FAILED) {
    close(file_);
    throw Error("offload", format("no memory for a buffer of {}", byte_size_text(buffer_bytes_)),
                "make the buffer smaller");
  }
  buffer_ = static_cast<char*>(pages);
  try {
    BudgetAllocator::cpu().counter().charge(buffer_bytes_, allocation::kStaging);
  } catch (...) {
    munmap(buffer_, static_cast<size_t>(buffer_bytes_));
    close(file_);
    throw;
  }
}

void DirectFile::warn_page_cache() const {
  static std::once_flag once;
  std::call_once(once, [&] {
    log::warn_here("offload", format("the file system of {} has no direct I/O; tensors pass "
                                     "through the page cache, which is slower",
                                     directory_));
  });
}

DirectFile::~DirectFile() {
  BudgetAllocator::cpu().counter().release(buffer_bytes_, allocation::kStaging);
  munmap(buffer_, static_cast<size_t>(buffer_bytes_));
  close(file_);
}

/// Aligned memory is written directly, up to its last partial block; the rest through the buffer.
void DirectFile::write(const char* data, int64_t bytes, int64_t offset,
                       const std::atomic<bool>& interrupted) {
  const bool straight = !is_direct_ || is_aligned(data);
  for (int64_t done = 0; done < bytes && !interrupted;) {
    const int64_t left = bytes - done;
    int64_t now = std::min(left, buffer_bytes_);
    if (straight && (left >= kBlock || !is_direct_)) {
      now = std::min(left, kMaxAtOnce);
      if (is_direct_) now = now / kBlock * kBlock;
      write_block(data + done, now, offset + done);
    } else {
      std::memcpy(buffer_, data + done, static_cast<size_t>(now));
      std::memset(buffer_ + now, 0, static_cast<size_t>(whole_blocks(now) - now));
      write_block(buffer_, whole_blocks(now), offset + done);
    }
    done += now;
  }
}

void DirectFile::read(char* data, int64_t bytes, int64_t offset,
                      const std::atomic<bool>& interrupted) {
  const bool straight = !is_direct_ || is_aligned(data);
  for (int64_t done = 0; done < bytes && !interrupted;) {
    const int64_t left = bytes - done;
    int64_t now = std::min(left, buffer_bytes_);
    if (straight && (left >= kBlock || !is_direct_)) {
      now = std::min(left, kMaxAtOnce);
      if (is_direct_) now = now / kBlock * kBlock;
      read_block(data + done, now, offset + done);
    } else {
      read_block(buffer_, whole_blocks(now), offset + done);
      std::memcpy(data + done, buffer_, static_cast<size_t>(now));
    }
    done += now;
  }
}

void DirectFile::write_block(const char* data, int64_t bytes, int64_t offset) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t moved =
        pwrite(file_, data + done, static_cast<size_t>(bytes - done), offset + done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && errno == EINVAL && is_direct_) {
      // Some file systems allow direct I/O until it is tried.
      is_direct_ = false;
      fcntl(file_, F_SETFL, fcntl(file_, F_GETFL) & ~O_DIRECT);
      warn_page_cache();
      continue;
    }
    if (moved < 0) {
      const bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
      fail("cannot write", bytes - done, offset + done, reason(errno),
           full ? "make room there, choose another directory, or offload less"
                : "check the disk, or choose another directory");
    }
    if (moved == 0)
      fail("cannot write", bytes - done, offset + done, "the disk takes no more",
           "make room there, or choose another directory");
    done += moved;
  }
  if (!is_direct_) {
    sync_file_range(
        file_, offset, bytes,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(file_, offset, bytes, POSIX_FADV_DONTNEED);
  }
}

void DirectFile::read_block(char* data, int64_t bytes, int64_t offset) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t moved =
        pread(file_, data + done, static_cast<size_t>(bytes - done), offset + done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0)
      fail("cannot read", bytes - done, offset + done, reason(errno),
           "check the disk, or choose another directory");
    if (moved == 0)
      fail("cannot read", bytes - done, offset + done, "the file ends before that",
           "something cut the file: nothing else may write to it");
    done += moved;
  }
  if (!is_direct_) posix_fadvise(file_, offset, bytes, POSIX_FADV_DONTNEED);
}

void DirectFile::fail(const char* what, int64_t bytes, int64_t offset, const std::string& why,
                      const char* fix) const {
  throw Error("offload",
              format("{} {} at {} of the file in {}: {}", what, byte_size_text(bytes),
                     byte_size_text(offset), directory_, why),
              fix);
}

}  // namespace fleet::memory
