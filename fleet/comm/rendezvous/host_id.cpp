// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/host_id.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

namespace fleet::comm {
namespace {

std::string read_link(const char* path) {
  std::array<char, 256> buffer{};
  const auto length = ::readlink(path, buffer.data(), buffer.size());
  return length > 0 ? std::string(buffer.data(), static_cast<size_t>(length)) : std::string();
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::string host_id() {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(boot, id);
  return id + read_link("/proc/self/ns/pid");
}

}  // namespace fleet::comm
