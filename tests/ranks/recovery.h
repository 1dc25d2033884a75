// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "tests/ranks/ranks.h"

namespace fleet::launch {

/// Words for fleetrun: a training that saves in `dir` after every fifth of its 40 updates.
inline Words recovery_job(int ranks, const std::filesystem::path& dir, const Words& arguments = {},
                          const Words& flags = {}) {
  Words words = {"--nproc_per_node=" + std::to_string(ranks)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back(beside("test_recovery_program"));
  if (!dir.empty()) words.push_back("--snapshot_dir=" + dir.string());
  words.push_back("--save_every=5");
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

/// What a run of it ends with that nothing disturbs.
std::string reference_digest(int ranks, const Words& arguments = {});

}  // namespace fleet::launch
