// SPDX-License-Identifier: Apache-2.0
#include "tests/support/two_hosts.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

bool run(std::vector<std::string> words) {
  std::vector<char*> list;
  for (auto& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&quiet, fd, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  int status = -1;
  const bool started = posix_spawnp(&pid, list[0], &quiet, nullptr, list.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&quiet);
  return started && waitpid(pid, &status, 0) == pid && status == 0;
}

std::string space(int host) { return format("fleet{}h{}", getpid(), host); }

}  // namespace

TwoHosts::TwoHosts() : refused_(set_up()) {}

TwoHosts::~TwoHosts() {
  if (geteuid() != 0) return;
  for (int host = 0; host < 2; ++host) run({"ip", "netns", "delete", space(host)});
}

std::string TwoHosts::set_up() {
  if (geteuid() != 0) return "network namespaces need root";
  for (int host = 0; host < 2; ++host)
    if (!run({"ip", "netns", "add", space(host)})) return "`ip netns add` is not permitted here";
  if (!run({"ip", "link", "add", device(0), "netns", space(0), "type", "veth", "peer", "name",
            device(1), "netns", space(1)}))
    return "virtual network cables are not permitted here";
  for (int host = 0; host < 2; ++host) {
    if (!connect(host, device(host), format("10.77.0.{}/24", host + 1)) ||
        !run({"ip", "-n", space(host), "link", "set", "lo", "up"}))
      return "network namespaces cannot be set up here";
  }
  return "";
}

std::vector<std::string> TwoHosts::on(int host) const {
  return {"ip", "netns", "exec", space(host), "env", "FLEET_JOB_KEY=the same on both hosts"};
}

bool TwoHosts::unplug(int host) const {
  return run({"ip", "-n", space(host), "link", "set", device(host), "down"});
}

bool TwoHosts::plug_in(int host) const {
  return run({"ip", "-n", space(host), "link", "set", device(host), "up"});
}

std::string TwoHosts::name(int host) const { return space(host); }

std::string TwoHosts::device(int host) { return format("cable{}", host); }

bool TwoHosts::connect(int host, const std::string& device, const std::string& address) const {
  return run({"ip", "-n", space(host), "address", "add", address, "dev", device}) &&
         run({"ip", "-n", space(host), "link", "set", device, "mtu", "9000", "up"});
}

bool TwoHosts::limit_rate(int host, const std::string& device, int mbit) const {
  return run({"tc", "-n", space(host), "qdisc", "replace", "dev", device, "root", "tbf", "rate",
              format("{}mbit", mbit), "burst", "64kb", "latency", "100ms"});
}

}  // namespace fleet::launch
