// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/commands.h"

#include <algorithm>
#include <string>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"
#include "fleet/core/version.h"

namespace fleet::tool {
namespace {

constexpr Command kCommands[] = {
    {"convert", "checks a file of weights against a model and writes it with Fleet's names",
     convert},
    {"doctor", "checks this machine before a job starts, and says what to change", doctor},
    {"inspect", "lists the tensors of a safetensors file without loading them", inspect},
    {"plan", "predicts which batch fits into how much memory, with and without recompute", plan},
    {"tokenize", "converts plain text to samples for BERT, and trains a vocabulary on request",
     tokenize},
};

std::string help() {
  std::string text = "fleet: tools around training\n\nusage: fleet COMMAND [flags]\n\n";
  for (const auto& command : kCommands) text += format("  {:<10}{}\n", command.name, command.about);
  return text +
         "\n'fleet COMMAND --help' lists the flags of a command, 'fleet --version' prints "
         "versions.\n"
         "\nExamples:\n"
         "  fleet inspect model.safetensors\n"
         "  fleet plan --model bert-large --seq 512 --batch 256 --budget 32GiB\n";
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

int run(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") throw HelpRequested(help());
  if (name == "--version") throw HelpRequested(version_text("fleet"));
  std::vector<std::string> names;
  for (const auto& command : kCommands) {
    names.emplace_back(command.name);
    if (command.name != name) continue;
    std::string program = format("fleet {}", name);
    std::vector<char*> words(argv + 1, argv + argc);
    words.front() = program.data();
    return command.run(argc - 1, words.data());
  }
  throw UsageError("fleet",
                   name.empty()
                       ? "no command was given"
                       : format("there is no command '{}'{}", name, did_you_mean(name, names)),
                   "fleet --help lists the commands");
}

}  // namespace fleet::tool
