#include "fleet/train/snapshot_records.h"

#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/options_json.h"

namespace fleet {
namespace {

std::vector<std::string> expected_files(const TrainingRecord& record) {
  std::vector<std::string> names = {kTrainingFile, kModelFile, kOptimizerFile};
  for (int64_t rank = 0; rank < record.world_size; ++rank) {
    names.push_back(rank_file(rank));
    names.push_back(rank_tensors_file(rank));
    if (record.has_data) names.push_back(rank_data_file(rank));
  }
  return names;
}

// Before anything else is read: other formats may have other keys.
void check_format(const std::string& text, const std::string& source) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const int found = json.is_object() ? json.value("format", 0) : 0;
  if (found == TrainingRecord::kFormat) return;
  throw Error("snapshot",
              format("{}: format {} is not known here, where snapshots have format {}", source,
                     found, TrainingRecord::kFormat),
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
          field<&R::optimizer>("optimizer", "its name"),
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
std::string rank_tensors_file(int64_t rank) { return format("rank-{}.safetensors", rank); }

TrainingRecord training_record(DistributedOptimizer& optimizer, bool has_data) {
  return {.format = TrainingRecord::kFormat,
          .step = optimizer.attempts(),
          .world_size = std::ssize(optimizer.comm()->present()),
          .local_sgd = optimizer.local_sgd() != nullptr,
          .has_data = has_data,
          .optimizer = std::string(optimizer.optimizer().name()),
          .strategy = optimizer.strategy()};
}

RankRecord rank_record(DistributedOptimizer& optimizer) {
  RankRecord record{.counters = optimizer.counters()};
  if (auto* local = optimizer.local_sgd()) record.local_sgd = local->state();
  return record;
}

TrainingRecord read_training_record(const SnapshotReader& snapshot) {
  const auto text = snapshot.text_of(kTrainingFile);
  const auto source = (snapshot.folder() / kTrainingFile).string();
  check_format(text, source);
  TrainingRecord record;
  read_json(record, text, source);
  const auto expected = expected_files(record);
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

RankRecord read_rank_record(const SnapshotReader& snapshot, int64_t rank) {
  const auto name = rank_file(rank);
  RankRecord record;
  read_json(record, snapshot.text_of(name), (snapshot.folder() / name).string());
  return record;
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
