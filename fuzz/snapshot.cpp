// SPDX-License-Identifier: Apache-2.0
// The texts of a snapshot: its list of checksums, training.json, rank-N.json, own values, and the
// position in the data. The first byte says which of them the rest is; checksums are right for the
// others, as those that protect a text say nothing about who wrote it.

#include <algorithm>

#include "fleet/core/options/options_json.h"
#include "fleet/core/xx_hash64.h"
#include "fleet/data/sharded_sampler.h"
#include "fleet/snapshot/snapshot_folder.h"
#include "fleet/snapshot/snapshot_records.h"
#include "fleet/snapshot/snapshot_value.h"

#include "fuzz/scratch_file.h"

namespace fleet::fuzz {
namespace {

constexpr int64_t kStep = 7;
constexpr int64_t kOtherBatch = 8;
constexpr std::string_view kList = "step-00000007/checksums.xxh64";

std::string list_of(const FileHashes& files) {
  std::string text;
  for (const auto& [name, hash] : files) text += XxHash64::text(hash) + "  " + name + '\n';
  return text;
}

uint64_t hash_of(std::string_view text) {
  XxHash64 hash;
  hash.add(text.data(), text.size());
  return hash.value();
}

void checksums(std::string_view text) {
  static const ScratchFile list{std::string(kList)};
  list.write(text);
  std::optional<SnapshotReader> snapshot;
  if (!accepts([&] { snapshot.emplace(scratch_folder(), kStep); })) return;
  for (const auto& [name, hash] : snapshot->files())
    require(name.find('/') == name.npos, "a file lies in the folder");
  const auto lines = static_cast<size_t>(std::ranges::count(text, '\n'));
  require(snapshot->files().size() == lines, "every line is a file");
  list.write(list_of(snapshot->files()));
  require(SnapshotReader(scratch_folder(), kStep).files() == snapshot->files(),
          "written again the list is the same");
}

// A snapshot of one rank with this text as `name`.
SnapshotReader with_text(const std::string& name, std::string_view text) {
  static const ScratchFile list{std::string(kList)};
  static const ScratchFile training("step-00000007/training.json");
  static const ScratchFile rank("step-00000007/rank-0.json");
  (name == kTrainingFile ? training : rank).write(text);
  FileHashes files;
  for (const auto* other :
       {kModelFile, kOptimizerFile, "rank-0.safetensors", "rank-0.json", kTrainingFile})
    files[other] = 0;
  files[name] = hash_of(text);
  list.write(list_of(files));
  return SnapshotReader(scratch_folder(), kStep);
}

template <typename Record>
void require_same_again(const Record& record) {
  const auto text = write_json(record, Record{});
  Record again;
  read_json(again, text);
  require(write_json(again, Record{}) == text, "a record written again is the same");
}

void training(std::string_view text) {
  const auto snapshot = with_text(kTrainingFile, text);
  TrainingRecord record;
  if (!accepts([&] { record = read_training_record(snapshot); })) return;
  require(record.world_size == 1 && record.step >= 0, "it is of the ranks whose files are there");
  require_same_again(record);
}

void rank(std::string_view text) {
  const auto snapshot = with_text("rank-0.json", text);
  RankRecord record;
  if (!accepts([&] { record = read_rank_record(snapshot, "", 0); })) return;
  require(out_of_limits(record).empty(), "what is accepted is within its limits");
  require_same_again(record);
}

void values(std::string_view text) {
  bool flag = false;
  int whole = 0;
  int64_t large = 0;
  uint64_t unsigned_number = 0;
  float real = 0;
  double number = 0;
  std::string words;
  std::vector<int64_t> list;
  std::vector<double> numbers;
  const std::vector<SnapshotValue> all = {
      {"flag", &flag},      {"whole", &whole},   {"large", &large}, {"unsigned", &unsigned_number},
      {"real", &real},      {"number", &number}, {"words", &words}, {"list", &list},
      {"numbers", &numbers}};
  const auto before = write_values(all);
  if (!accepts([&] { read_values(all, std::string(text), "input", nullptr)(); })) {
    require(write_values(all) == before, "nothing is set when something is wrong");
    return;
  }
  const auto written = write_values(all);
  read_values(all, written, "again", nullptr)();
  require(write_values(all) == written, "values written again are the same");
}

void position(std::string_view text) {
  SamplerState state;
  if (!accepts([&] { read_json(state, text); })) return;
  require_same_again(state);
  accepts([&] {
    const auto now = in_batches_of(state, kOtherBatch);
    require(now.next_update >= 0 &&
                now.next_update * kOtherBatch <= state.next_update * state.global_batch,
            "no sample is left out");
  });
}

void run(Bytes bytes) {
  if (bytes.empty()) return;
  constexpr void (*kReaders[])(std::string_view) = {checksums, training, rank, values, position};
  kReaders[bytes[0] % std::size(kReaders)](text_of(bytes.subspan(1)));
}

const Target target("snapshot", run);

}  // namespace
}  // namespace fleet::fuzz
