// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace fleet::tool {

/// What `fleet NAME ...` runs. `argv[0]` is "fleet NAME", so that help and errors say so.
struct Command {
  std::string_view name;
  std::string_view about;
  int (*run)(int argc, char** argv);
};

/// All of them, in the order of the help. A new one is a function in a file of its own, declared
/// below, and a line in commands.cpp.
std::span<const Command> commands();

/// The whole program but for errors, which `fleet::run_main` prints.
int run(int argc, char** argv);

int convert(int argc, char** argv);
int doctor(int argc, char** argv);
int inspect(int argc, char** argv);
int plan(int argc, char** argv);
int tokenize(int argc, char** argv);

}  // namespace fleet::tool
