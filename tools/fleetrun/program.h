// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fleet/core/error.h"

namespace fleet::launch {

/// A program that cannot be started; the code is the shell's: 127 not found, 126 not executable.
class StartError : public Error {
 public:
  StartError(int exit_code, std::string_view what, std::string_view fix)
      : Error("fleetrun", what, fix), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// What the ranks execute, found before anything is started.
///
///   const auto program = find_program("train.py", {"--lr", "0.1"});
///   program.file;    // "/usr/bin/python3"
///   program.words;   // {"python3", "-u", "train.py", "--lr", "0.1"}
struct Program {
  std::string file;
  std::vector<std::string> words;
};

Program find_program(const std::string& name, const std::vector<std::string>& args);

}  // namespace fleet::launch
