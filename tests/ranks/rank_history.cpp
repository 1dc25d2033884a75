// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/rank_history.h"

#include <chrono>
#include <sstream>

#include "tests/support/launched.h"

namespace fleet::launch {

RankHistory RankHistory::in(const std::string& log) {
  RankHistory history;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, skipped;
    words >> word;
    if (word == "pid") {
      pid_t pid = 0;
      words >> pid;
      history.pids.push_back(pid);
      history.updates_before = history.updates.size();
    } else if (word == "update") {
      Update update;
      if (words >> update.number >> skipped >> skipped >> update.epoch >> skipped >> update.at) {
        history.updates.push_back(update);
      }
    } else if (word == "digest") {
      words >> history.digest;
    } else if (word == "loss") {
      words >> history.loss;
    }
  }
  return history;
}

bool RankHistory::is_training() const {
  return updates.size() > updates_before && !is_gone(pids.back());
}

std::optional<double> RankHistory::next_update_after(double time) const {
  for (const auto& update : updates) {
    if (update.at > time) return update.at;
  }
  return std::nullopt;
}

double steady_seconds() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

}  // namespace fleet::launch
