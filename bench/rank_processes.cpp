// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_processes.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "bench/delayed_link.h"
#include "tests/support/two_hosts.h"

namespace fleet::bench {
namespace {

using Words = std::vector<std::string>;

constexpr auto kLimit = std::chrono::minutes(30);
constexpr int kLinkMbit = 100;
constexpr std::chrono::milliseconds kLinkDelay{10};

volatile std::sig_atomic_t g_interrupted = 0;
void interrupt(int) { g_interrupted = 1; }

std::vector<char*> pointers(Words& words) {
  std::vector<char*> list;
  list.reserve(words.size() + 1);
  for (auto& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

// This program with `prefix` in front; `added` comes before the environment there is, and wins.
pid_t start_again(Words prefix, char** argv, Words added) {
  prefix.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  for (char** word = argv + 1; *word != nullptr; ++word) prefix.emplace_back(*word);
  for (char** item = environ; *item != nullptr; ++item) added.emplace_back(*item);
  const auto words = pointers(prefix);
  const auto environment = pointers(added);
  pid_t pid = 0;
  if (::posix_spawnp(&pid, words[0], nullptr, nullptr, words.data(), environment.data()) != 0) {
    throw Error("bench", "cannot start a rank");
  }
  return pid;
}

Words rank_environment(int rank, int ranks, const std::string& address, int port) {
  return {format("RANK={}", rank),           format("WORLD_SIZE={}", ranks),
          format("LOCAL_RANK={}", rank),     format("LOCAL_WORLD_SIZE={}", ranks),
          format("MASTER_ADDR={}", address), format("MASTER_PORT={}", port)};
}

// The standard output belongs to the ranks.
void say(const std::string& text) { std::fputs((text + "\n").c_str(), stderr); }

int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 1; }

// Waits for all; ends them when the time is up, or when this program is to end.
int wait_for(const std::vector<pid_t>& children) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  int worst = 0;
  for (const pid_t pid : children) {
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (g_interrupted != 0 || std::chrono::steady_clock::now() > deadline) {
        for (const pid_t other : children) ::kill(other, SIGKILL);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    worst = std::max(worst, exit_code(status));
  }
  return worst;
}

}  // namespace

int run_as_ranks(int ranks, char** argv) {
  const auto store = comm::Store::host(0, std::chrono::seconds(60));
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    auto environment = rank_environment(rank, ranks, "127.0.0.1", store.port());
    environment.push_back(format("FLEET_STORE=127.0.0.1:{}", store.port()));
    children.push_back(start_again({}, argv, environment));
  }
  return wait_for(children);
}

int run_on_two_hosts(int ranks, char** argv) {
  FLEET_ASSERT(ranks == 2, "one rank per host");
  const launch::TwoHosts hosts;
  if (!hosts.refused().empty()) {
    say(format("skipped: {}", hosts.refused()));
    return 0;
  }
  const DelayedLink far(hosts, kLinkDelay);
  const bool is_far = far.refused().empty();
  for (int host = 0; host < ranks; ++host) {
    const auto device = is_far ? DelayedLink::device(host) : launch::TwoHosts::device(host);
    if (hosts.limit_rate(host, device, kLinkMbit)) continue;
    say("skipped: `tc` cannot limit the rate of a link here");
    return 0;
  }
  say(is_far ? format("a link of {} Mbit/s and {} ms each way", kLinkMbit, kLinkDelay.count())
             : format("a link of {} Mbit/s without delay: {}", kLinkMbit, far.refused()));
  std::signal(SIGINT, interrupt);
  std::signal(SIGTERM, interrupt);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    auto environment = rank_environment(rank, ranks, is_far ? "10.78.0.1" : "10.77.0.1", 29500);
    environment.emplace_back("FLEET_SHARED_MEMORY=0");
    environment.emplace_back("FLEET_TIMEOUT_S=60");
    children.push_back(start_again(hosts.on(rank), argv, environment));
  }
  return wait_for(children);
}

}  // namespace fleet::bench
