// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/program/train_config.h"

#include <algorithm>
#include <functional>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"
#include "fleet/train/command_line_strategy.h"

namespace fleet {
namespace {

std::string program_name(int argc, const char* const* argv) {
  const std::string path = argc > 0 ? argv[0] : "program";
  return path.empty() ? "program" : path;
}

constexpr std::string_view kSnapshots = "snapshots";

void check_names(const std::vector<std::string>& reads) {
  std::vector<std::string> known = {std::string(kSnapshots)}, problems;
  const TrainConfig* any = nullptr;
  for (const auto& field : fields_of(any).fields) known.emplace_back(field.name);
  for (const auto& name : reads) {
    if (std::ranges::find(known, name) == known.end())
      problems.push_back(
          format("'{}' is no field of TrainConfig{}", name, did_you_mean(name, known)));
  }
  if (problems.empty()) return;
  throw UsageError::all("config", "ProgramHelp::reads names what does not exist:", problems,
                        "give names of flags, or \"snapshots\"");
}

// The fields that a program reads. Others are no flags of it, and known by name: a flag that would
// change nothing is refused.
FieldList only(const FieldList& all, const std::function<bool(std::string_view)>& is_read) {
  FieldList list{.area = all.area, .fields = {}, .absent = all.absent};
  for (const auto& field : all.fields) {
    if (is_read(field.name)) {
      list.fields.push_back(field);
    } else {
      list.absent.push_back(
          {field.name, "this program does not read it (ProgramHelp::reads has what it does)"});
    }
  }
  return list;
}

}  // namespace

TrainConfig parse_train_configs(int argc, const char* const* argv,
                                const std::vector<FlagGroup>& own, const TrainConfig& defaults,
                                const ProgramHelp& help) {
  check_names(help.reads);
  TrainConfig config = defaults;
  const auto reads = [&](std::string_view name) {
    return std::ranges::find(help.reads, name) != help.reads.end();
  };
  const auto training = only(fields_of(&config), [&](std::string_view name) {
    return name == "strategy" || name == "plan_only" || name == "memory_budget" || reads(name);
  });
  const auto snapshots =
      only(fields_of(&config.snapshots), [&](std::string_view) { return reads(kSnapshots); });
  CommandLine line{.about = help.about, .groups = own, .examples = help.examples};
  OptionsRef of_training = config, of_snapshots = config.snapshots;
  of_training.list = &training;
  of_snapshots.list = &snapshots;
  line.groups.push_back({"Training", of_training});
  line.groups.push_back({"Snapshots (docs/snapshots.md)", of_snapshots});
  line.groups.push_back({"Strategy (docs/strategy.md)", config.strategy});
  if (line.examples.empty()) {
    line.examples = {"{} --batch_size 64 --epochs 2",
                     "fleetrun --nproc_per_node 2 {} --fp16_allreduce"};
  }
  for (auto& example : line.examples) {
    if (const auto at = example.find("{}"); at != example.npos)
      example.replace(at, 2, program_name(argc, argv));
  }
  parse(line, argc, argv);
  if (!config.strategy_file.empty()) {
    // Once more over the file, so that flags win wherever they stand on the line.
    config.strategy = DistributedStrategy::load(config.strategy_file);
    parse(line, argc, argv);
  }
  if (!config.memory_budget.empty()) {
    config.strategy.recompute = true;
    config.strategy.recompute_configs.memory_budget = config.memory_budget;
  }
  if (config.plan_only) {
    config.strategy.recompute = true;
    config.strategy.recompute_configs.plan_only = true;
  }
  keep_command_line_strategy(config.strategy, defaults.strategy);
  return config;
}

const FieldList& fields_of(const TrainConfig*) {
  using C = TrainConfig;
  static const FieldList list{
      .area = "config",
      .fields =
          {
              field<&C::lr>("lr", "learning rate").at_least(0),
              field<&C::momentum>("momentum", "momentum of Momentum and LARS").at_least(0).below(1),
              field<&C::beta1>("beta1", "Adam and LAMB: decay of the first moment")
                  .at_least(0)
                  .below(1),
              field<&C::beta2>("beta2", "Adam and LAMB: decay of the second moment")
                  .at_least(0)
                  .below(1),
              field<&C::epsilon>("epsilon", "Adam and LAMB: added to the denominator").at_least(0),
              field<&C::batch_size>("batch_size", "samples of one update on one rank")
                  .at_least(1)
                  .in_unit("samples"),
              field<&C::epochs>("epochs", "number of epochs").at_least(0).in_unit("epochs"),
              field<&C::seed>("seed", "seed of shuffling, initial weights and dropout").at_least(0),
              field<&C::strategy_file>("strategy",
                                       "JSON file with a strategy, which flags can change"),
              field<&C::memory_budget>(
                  "memory_budget",
                  "recompute to stay within this memory: 12GiB, 60% of what this rank may "
                  "have, or \"50% of plain\" training"),
              field<&C::plan_only>("plan_only",
                                   "print the plan for memory_budget, or what plain training takes "
                                   "without one, and do not train"),
          },
      .absent = {
          {"download_config",
           "Paddle's, for programs fetched from a server; nothing is downloaded"},
          {"gpu_ids", "Paddle's of 2020; which devices ranks get is the launcher's business"},
      }};
  return list;
}

TrainConfig parse_train_configs(int argc, const char* const* argv, const TrainConfig& defaults,
                                const ProgramHelp& help) {
  return parse_train_configs(argc, argv, std::vector<FlagGroup>(), defaults, help);
}

TrainConfig parse_train_configs(int argc, const char* const* argv, OptionsRef own,
                                const TrainConfig& defaults, const ProgramHelp& help) {
  return parse_train_configs(argc, argv, {{"This program", own}}, defaults, help);
}

}  // namespace fleet
