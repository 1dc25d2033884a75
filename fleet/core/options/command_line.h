// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fleet/core/options/options.h"

namespace fleet {

/// Flags that belong together in the help.
struct FlagGroup {
  std::string title;
  OptionsRef options;
};

/// A program's flags, made from the field lists of its options.
///
/// `--batch_size 32`, `--batch_size=32` and `--batch-size 32` are the same. A switch is `--amp`,
/// `--no_amp` or `--amp=false`. A list is `--checkpoints a,b` or the flag repeated; it replaces the
/// list that was there. Of any other flag the last one counts, so that a script can end in "$@".
/// `--` ends the flags.
///
///   CommandLine line{.about = "trains a small net",
///                    .groups = {{"Training", options}},
///                    .examples = {"train --lr 0.1", "fleetrun --nproc_per_node 2 train"}};
///   parse(line, argc, argv);
struct CommandLine {
  std::string about;
  std::vector<FlagGroup> groups;
  std::vector<std::string> examples;  ///< two commands that run as they stand; they end the help

  /// Where arguments that are no flags go; without it they are an error.
  std::vector<std::string>* positional = nullptr;
  std::string positional_help = {};
  bool stop_at_positional = false;  ///< the first takes all that follows, as for a launcher
};

/// Sets the options from the flags. Every mistake of the line is in one UsageError, which leaves
/// the options as they were; `--help`, `-h` or `--version`, whatever else is wrong, throws
/// HelpRequested.
void parse(const CommandLine& line, int argc, const char* const* argv);

/// What `--help` prints: one line for each flag, with its unit and its default, which is the value
/// that the options hold now; a value outside the limits of its field means "none".
std::string help_text(const CommandLine& line, const std::string& program);

}  // namespace fleet
