// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/command_line_strategy.h"

#include <map>
#include <mutex>

#include "fleet/core/options/options.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

struct CommandLineStrategy {
  std::mutex mutex;
  std::map<std::string, FieldValue> asked;  // by path; only what differs from the defaults
};

CommandLineStrategy& command_line_strategy() {
  static CommandLineStrategy strategy;
  return strategy;
}

// Lists of checkpoints are long.
std::string shown(const FieldValue& value) {
  constexpr size_t kLongest = 60;
  auto text = to_text(value);
  if (text.empty()) return "nothing";
  if (text.size() > kLongest) text.replace(kLongest, text.npos, "...");
  return text;
}

}  // namespace

void keep_command_line_strategy(const DistributedStrategy& asked,
                                const DistributedStrategy& defaults) {
  auto& kept = command_line_strategy();
  const std::lock_guard lock(kept.mutex);
  kept.asked.clear();
  const auto before = leaves(OptionsView(defaults));
  const auto after = leaves(OptionsView(asked));
  for (size_t i = 0; i < after.size(); ++i) {
    if (after[i].value() != before[i].value()) kept.asked[after[i].path] = after[i].value();
  }
}

std::vector<std::string> overridden_by_program(const DistributedStrategy& in_program) {
  auto& kept = command_line_strategy();
  const std::lock_guard lock(kept.mutex);
  std::vector<std::string> lines;
  for (const auto& leaf : leaves(OptionsView(in_program))) {
    const auto asked = kept.asked.find(leaf.path);
    if (asked == kept.asked.end() || asked->second == leaf.value()) continue;
    lines.push_back(format("{} = {} of the command line is not in force: the program sets {}",
                           leaf.path, shown(asked->second), shown(leaf.value())));
  }
  return lines;
}

}  // namespace fleet
