// SPDX-License-Identifier: Apache-2.0
// The command line of a training program, a word per line of the input.

#include <algorithm>

#include "fleet/core/version.h"
#include "fleet/train/program/train_config.h"

#include "fuzz/words.h"

namespace fleet::fuzz {
namespace {

const ProgramHelp kHelp{.reads = {"lr", "momentum", "beta1", "beta2", "epsilon", "batch_size",
                                  "epochs", "seed", "snapshots"}};

TrainConfig parsed(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"train"};
  for (const auto& word : words) argv.push_back(word.c_str());
  return parse_train_configs(static_cast<int>(argv.size()), argv.data(), {}, kHelp);
}

bool names_a_file(const std::string& word) {
  return word == "--strategy" || word.starts_with("--strategy=");
}

void run(Bytes bytes) {
  const auto words = without_help(words_of(bytes));
  if (std::ranges::any_of(words, names_a_file)) return;  // any file of this machine
  TrainConfig config;
  try {
    if (!accepts([&] { config = parsed(words); })) return;
  } catch (const HelpRequested& help) {
    const std::string_view text = help.what();
    require(text.starts_with("train: ") || text == version_text("train"),
            "help begins with the program, or it is what --version prints");
    return;
  }
  require(out_of_limits(config).empty() && out_of_limits(config.strategy).empty() &&
              out_of_limits(config.snapshots).empty(),
          "what is accepted is within its limits");
  const TrainConfig defaults;
  auto flags = flags_for(config, defaults);
  for (const auto& more : {flags_for(config.snapshots, defaults.snapshots),
                           flags_for(config.strategy, defaults.strategy)}) {
    flags.insert(flags.end(), more.begin(), more.end());
  }
  require(parsed(flags) == config, "written as flags and parsed again it is the same");
}

const Target target("train_flags", run);

}  // namespace
}  // namespace fleet::fuzz
