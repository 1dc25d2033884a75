// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_records.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/options/options_json.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"

namespace fleet {
namespace {

// Appends what is wrong with one kind of names.
void compare_names(std::string_view kind, const std::vector<std::string>& then,
                   const std::vector<std::string>& now, std::vector<std::string>& problems) {
  const auto lacks = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) == names.end();
  };
  std::vector<std::string> missing;
  for (const auto& name : now) {
    if (lacks(then, name)) missing.push_back(name);
  }
  std::vector<std::string> unexpected;
  for (const auto& name : then) {
    if (lacks(now, name)) unexpected.push_back(name);
  }
  const auto called = [&](const std::string& name, std::vector<std::string> others) {
    if (name.empty()) return format("an {} without a name", kind);
    std::erase(others, "");
    return format("{} '{}'{}", kind, name, did_you_mean(name, others));
  };
  for (const auto& name : missing) problems.push_back("missing: " + called(name, unexpected));
  for (const auto& name : unexpected) problems.push_back("unexpected: " + called(name, missing));
}

// Before anything else is read: other formats may have other keys.
void check_format(const std::string& text, const std::string& source) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto entry = json.is_object() ? json.find("format") : json.end();
  const auto found =
      entry != json.end() && entry->is_number_integer() ? entry->get<int64_t>() : int64_t{0};
  if (found == TrainingRecord::kFormat || found == TrainingRecord::kFormatOfNames) return;
  throw UsageError("snapshot",
                   format("{}: format {} is not known here, where snapshots have format {} or {}",
                          source, found, TrainingRecord::kFormat, TrainingRecord::kFormatOfNames),
                   "resume with the version of Fleet that wrote it");
}

}  // namespace

const FieldList& fields_of(const TrainingRecord*) {
  using R = TrainingRecord;
  static const FieldList list{
      .area = "snapshot",
      .fields = {
          field<&R::format>("format", "of the files"),
          field<&R::step>("step", "updates, skipped ones among them").at_least(0),
          field<&R::world_size>("world_size", "ranks").at_least(1),
          field<&R::local_sgd>("local_sgd", "ranks have parameters of their own"),
          field<&R::has_data>("has_data", "a position in the data was kept"),
          field<&R::optimizers>("optimizers", "their names"),
          field<&R::models>("models", "names of those that no optimizer trains"),
          field<&R::values>("values", "names of the program's own"),
          field<&R::optimizer>("optimizer", "what it is"),
          field<&R::strategy>("strategy", "that was in force"),
      }};
  return list;
}

const FieldList& fields_of(const RankRecord*) {
  using R = RankRecord;
  static const FieldList list{.area = "snapshot",
                              .fields = {
                                  field<&R::counters>("counters", "of the optimizer"),
                                  field<&R::local_sgd>("local_sgd", "its window"),
                              }};
  return list;
}

std::string rank_file(int64_t rank) { return format("rank-{}.json", rank); }
std::string rank_data_file(int64_t rank) { return format("rank-{}.data.json", rank); }
std::string rank_values_file(int64_t rank) { return format("rank-{}.values.json", rank); }
std::string rank_tensors_file(int64_t rank) { return format("rank-{}.safetensors", rank); }
std::string file_of(const std::string& name, const std::string& file) {
  return name.empty() ? file : format("{}.{}", name, file);
}

TrainingRecord training_record(DistributedOptimizer& optimizer) {
  return {.format = TrainingRecord::kFormat,
          .step = optimizer.attempts(),
          .world_size = std::ssize(optimizer.comm()->present()),
          .local_sgd = optimizer.local_sgd() != nullptr,
          .optimizer = std::string(optimizer.optimizer().name()),
          .strategy = optimizer.strategy()};
}

RankRecord rank_record(DistributedOptimizer& optimizer) {
  RankRecord record{.counters = optimizer.counters()};
  if (auto* local = optimizer.local_sgd()) record.local_sgd = local->state();
  return record;
}

TrainingRecord training_record(const SnapshotContents& contents) {
  TrainingRecord record;
  if (!contents.has_names()) record = training_record(*contents.optimizers.front().optimizer);
  record.step = contents.step();
  record.world_size = std::ssize(contents.comm()->present());
  record.local_sgd = contents.has_local_sgd();
  record.has_data = contents.data.is_known();
  if (contents.has_names()) {
    for (const auto& item : contents.optimizers) record.optimizers.push_back(item.name);
  }
  for (const auto& item : contents.models) record.models.push_back(item.name);
  for (const auto& value : contents.values) record.values.push_back(value.name());
  const bool is_plain = !contents.has_names() && contents.values.empty();
  record.format = is_plain ? TrainingRecord::kFormat : TrainingRecord::kFormatOfNames;
  return record;
}

std::vector<std::string> optimizers_in(const TrainingRecord& record) {
  return record.optimizers.empty() ? std::vector<std::string>{""} : record.optimizers;
}

std::vector<std::string> common_files(const TrainingRecord& record) {
  std::vector<std::string> names = {kTrainingFile};
  for (const auto& name : optimizers_in(record)) {
    if (!name.empty()) names.push_back(file_of(name, kTrainingFile));
    names.push_back(file_of(name, kModelFile));
    names.push_back(file_of(name, kOptimizerFile));
  }
  for (const auto& name : record.models) names.push_back(file_of(name, kModelFile));
  return names;
}

std::vector<std::string> files_of_rank(const TrainingRecord& record, int64_t rank) {
  std::vector<std::string> names = {rank_tensors_file(rank)};
  for (const auto& name : optimizers_in(record)) {
    names.push_back(file_of(name, rank_file(rank)));
    if (!name.empty()) names.push_back(file_of(name, rank_tensors_file(rank)));
  }
  for (const auto& name : record.models) names.push_back(file_of(name, rank_tensors_file(rank)));
  if (record.has_data) names.push_back(rank_data_file(rank));
  if (!record.values.empty()) names.push_back(rank_values_file(rank));
  return names;
}

TrainingRecord read_training_record(const SnapshotReader& snapshot) {
  const auto record = read_training_record(snapshot, "");
  const auto source = (snapshot.folder() / kTrainingFile).string();
  // Each rank has a file at least; without this, the names of their files might fill the memory.
  if (record.world_size > std::ssize(snapshot.files())) {
    throw Error("snapshot", format("{}: {} ranks, and the snapshot has {} files", source,
                                   record.world_size, snapshot.files().size()));
  }
  auto expected = common_files(record);
  for (int64_t rank = 0; rank < record.world_size; ++rank) {
    const auto own = files_of_rank(record, rank);
    expected.insert(expected.end(), own.begin(), own.end());
  }
  for (const auto& name : expected) {
    if (!snapshot.files().contains(name)) {
      throw Error("snapshot", format("{}: the snapshot has no {}", source, name));
    }
  }
  if (snapshot.files().size() != expected.size()) {
    throw Error("snapshot", format("{}: the snapshot has {} files and should have {}", source,
                                   snapshot.files().size(), expected.size()));
  }
  return record;
}

TrainingRecord read_training_record(const SnapshotReader& snapshot, const std::string& name) {
  const auto file = file_of(name, kTrainingFile);
  const auto text = snapshot.text_of(file);
  const auto source = (snapshot.folder() / file).string();
  check_format(text, source);
  TrainingRecord record;
  read_json(record, text, source);
  return record;
}

RankRecord read_rank_record(const SnapshotReader& snapshot, const std::string& name, int64_t rank) {
  const auto file = file_of(name, rank_file(rank));
  RankRecord record;
  read_json(record, snapshot.text_of(file), (snapshot.folder() / file).string());
  return record;
}

void check_names(const TrainingRecord& record, const SnapshotContents& contents,
                 const std::string& source) {
  const auto now = training_record(contents);
  std::vector<std::string> problems;
  compare_names("optimizer", optimizers_in(record), optimizers_in(now), problems);
  compare_names("model", record.models, now.models, problems);
  compare_names("value", record.values, now.values, problems);
  if (problems.empty()) return;
  throw UsageError::all("snapshot", format("{} holds other names than are given here", source),
                        problems,
                        "give the names that it was saved with, or choose another --snapshot_dir; "
                        "fleet::load_snapshot with the old names takes it into a new folder");
}

std::vector<std::string> differences(const DistributedStrategy& then,
                                     const DistributedStrategy& now) {
  std::vector<std::string> result;
  const auto before = leaves(OptionsView(then));
  const auto after = leaves(OptionsView(now));
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].value() == after[i].value()) continue;
    result.push_back(format("{} was {} and is now {}", before[i].path, to_text(before[i].value()),
                            to_text(after[i].value())));
  }
  return result;
}

}  // namespace fleet
