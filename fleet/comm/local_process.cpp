#include "fleet/comm/local_process.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "fleet/core/format.h"

namespace fleet::comm {
namespace {

std::string read_link(const char* path) {
  std::array<char, 256> buffer{};
  const auto length = ::readlink(path, buffer.data(), buffer.size());
  return length > 0 ? std::string(buffer.data(), static_cast<size_t>(length)) : std::string();
}

}  // namespace

std::string host_id() {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(boot, id);
  return id + read_link("/proc/self/ns/pid");
}

ProcessStat process_stat(int pid) {
  std::ifstream file(format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  // "pid (any text) state parent ..."; the start is the 20th word after the text.
  const auto close = text.rfind(") ");
  if (close == std::string::npos) return {};
  std::istringstream words(text.substr(close + 2));
  ProcessStat stat;
  words >> stat.state;
  std::string skipped;
  constexpr int kBetween = 18;
  for (int i = 0; i < kBetween; ++i) words >> skipped;
  words >> stat.started;
  return stat;
}

}  // namespace fleet::comm
