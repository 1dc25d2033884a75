// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/support/launched.h"

namespace fleet::launch {

using Words = std::vector<std::string>;

/// Words for fleetrun: `ranks` ranks of the program of this folder.
inline Words job(int ranks, const Words& arguments, const Words& flags = {}) {
  Words words = {"--nproc_per_node=" + std::to_string(ranks)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back(beside("test_rank_program"));
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

/// `env NAME=value ...`, to go in front of a command.
inline Words with(const Words& variables) {
  Words words = {"env"};
  words.insert(words.end(), variables.begin(), variables.end());
  return words;
}

/// One rank started by hand.
inline Words by_hand(const Words& variables, const Words& arguments) {
  auto words = with(variables);
  words.push_back(beside("test_rank_program"));
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

/// What follows `word` and a space in the first line that starts with it; empty without one.
std::string after(const std::string& log, const std::string& word);

/// Losses by step, as rank 0 has printed them.
std::map<int, double> losses(const std::string& log);

/// Lines of a log that a run without accidents does not have: warnings, errors, connections closed.
std::string unexpected_lines(const std::string& log);

/// The first line that starts with "error:", and the indented ones that belong to it.
std::string error_in(const std::string& log);

}  // namespace fleet::launch
