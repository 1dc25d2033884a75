// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/process/marked_processes.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>
#include <thread>

#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;

constexpr auto kPollInterval = std::chrono::milliseconds(5);

bool is_marked(pid_t pid, const std::string& launch_id) {
  std::ifstream file(format("/proc/{}/environ", pid), std::ios::binary);  // of this user's only
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto wanted = format("{}={}", kLaunchId, launch_id);
  for (size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\0', at), text.size());
    const auto entry = std::string_view(text).substr(at, end - at);
    if (entry == wanted || entry.starts_with(wanted + "/")) return true;
    at = end + 1;
  }
  return false;
}

}  // namespace

std::string new_launch_id() {
  const char* outer = std::getenv(kLaunchId);
  std::random_device random;
  return format("{}{}-{:08x}{:08x}", outer != nullptr ? format("{}/", outer) : "", ::getpid(),
                random(), random());
}

std::vector<pid_t> marked_processes(const std::string& launch_id) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::stoi(name);
    if (pid != ::getpid() && is_marked(pid, launch_id)) found.push_back(pid);
  }
  return found;
}

void signal_marked(const std::string& launch_id, int signal) {
  for (const pid_t pid : marked_processes(launch_id)) {
    const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process) {  // ended, or a kernel before 5.3
      if (is_marked(pid, launch_id)) ::kill(pid, signal);
      continue;
    }
    if (is_marked(pid, launch_id))
      ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0);
  }
}

void kill_marked(const std::string& launch_id, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!marked_processes(launch_id).empty() && std::chrono::steady_clock::now() < deadline) {
    signal_marked(launch_id, SIGKILL);
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace fleet::launch
