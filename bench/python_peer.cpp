// SPDX-License-Identifier: Apache-2.0
#include "bench/python_peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::bench {

PythonPeer::PythonPeer(const std::string& script, const std::vector<std::string>& arguments) {
  const char* chosen = std::getenv("FLEET_PYTHON");
  std::vector<std::string> words = {chosen ? chosen : "python3", script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  std::array<int, 2> down{}, up{};
  if (::pipe2(down.data(), O_CLOEXEC) != 0 || ::pipe2(up.data(), O_CLOEXEC) != 0)
    throw Error("bench", "cannot make a pipe");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, down[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, up[1], STDOUT_FILENO);
  const int failed = ::posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(down[0]);
  ::close(up[1]);
  to_ = ::fdopen(down[1], "w");
  from_ = ::fdopen(up[0], "r");
  if (failed != 0) pid_ = -1;
  std::signal(SIGPIPE, SIG_IGN);  // a peer that has ended shows in its answer
  std::string line;
  is_available_ = failed == 0 && read_line(line) && line == "ready";
}

PythonPeer::~PythonPeer() {
  std::fclose(to_);  // its end of input, upon which it ends
  std::fclose(from_);
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

bool PythonPeer::read_line(std::string& line) {
  line.clear();
  int c = 0;
  while ((c = std::fgetc(from_)) != EOF && c != '\n') line += static_cast<char>(c);
  return c == '\n';
}

std::string PythonPeer::ask(const std::string& what) {
  std::fputs((what + "\n").c_str(), to_);
  std::fflush(to_);
  std::string line;
  if (!read_line(line)) throw Error("bench", format("the Python peer ended at '{}'", what));
  return line;
}

}  // namespace fleet::bench
