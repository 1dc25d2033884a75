// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/xx_hash64.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cerrno>
#include <new>
#include <system_error>

#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/format.h"

namespace fleet {

XxHash64::XxHash64() : state_(XXH64_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH64_reset(state_.get(), 0);
}

void XxHash64::Free::operator()(XXH64_state_s* state) const { XXH64_freeState(state); }

void XxHash64::add(const void* data, size_t bytes) { XXH64_update(state_.get(), data, bytes); }

uint64_t XxHash64::value() const { return XXH64_digest(state_.get()); }

std::string XxHash64::text(uint64_t value) { return format("{:016x}", value); }

uint64_t XxHash64::of(const void* data, size_t bytes) { return XXH64(data, bytes, 0); }

uint64_t XxHash64::of_file(const std::filesystem::path& path) {
  const auto fail = [&] {
    throw Error("io",
                format("cannot read {}: {}", path.string(), std::generic_category().message(errno)),
                "check the path, its permissions and the disk");
  };
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail();
  std::array<char, size_t{64} << 10> buffer;  // no new megabyte for each small file
  XxHash64 hash;
  ssize_t got = 0;
  while ((got = ::read(file.get(), buffer.data(), buffer.size())) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail();
    hash.add(buffer.data(), static_cast<size_t>(got));
  }
  return hash.value();
}

}  // namespace fleet
