// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_loader.h"

#include <algorithm>
#include <list>
#include <map>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/snapshot/snapshot_agreement.h"
#include "fleet/snapshot/snapshot_records.h"
#include "fleet/snapshot/snapshot_tensors.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;

/// A snapshot whose files are complete, as far as this rank has to check.
struct Candidate {
  SnapshotReader files;
  TrainingRecord training;
  int64_t source = 0;  // the rank whose files this one reads
};

// A rank checks what it reads, and its part of what no rank reads.
Candidate open_candidate(const fs::path& dir, int64_t step, const comm::Communicator& comm) {
  Candidate candidate{.files = SnapshotReader(dir, step)};
  const auto& files = candidate.files;
  candidate.training = read_training_record(files);
  const int64_t writers = candidate.training.world_size;
  candidate.source = comm.rank() < writers ? comm.rank() : 0;
  for (const auto& name : common_files(candidate.training)) files.checked(name);
  const auto check_rank = [&](int64_t rank) {
    for (const auto& name : files_of_rank(candidate.training, rank)) files.checked(name);
  };
  check_rank(candidate.source);
  for (int64_t rank = comm.rank() % writers; rank < writers; rank += comm.size()) {
    if (rank != candidate.source) check_rank(rank);
  }
  for (const auto& name : optimizers_in(candidate.training)) {  // that they can be read
    read_rank_record(files, name, candidate.source);
    read_training_record(files, name);
  }
  return candidate;
}

// A run that died while it replaced a snapshot left it under another name. fleet::Snapshots has
// seen to it already, under its lock.
void complete_interrupted(const fs::path& dir) {
  if (!has_interrupted(dir)) return;
  try {
    const FolderLock lock(dir);
    finish_interrupted(dir);
  } catch (const Error& error) {
    log::warn("snapshot", format("a snapshot in {} is half renamed, and stays so: {}", dir.string(),
                                 summary_line(error.what())));
  }
}

std::vector<int64_t> agreed_steps(const fs::path& dir, comm::Communicator& comm) {
  if (comm.rank() == 0) complete_interrupted(dir);
  auto steps = comm.rank() == 0 ? snapshots_in(dir) : std::vector<int64_t>{};
  if (comm.size() == 1) return steps;
  const auto count = torch::full({1}, std::ssize(steps), torch::kLong);
  comm.broadcast(count, 0, "the number of snapshots");
  steps.resize(static_cast<size_t>(count.item<int64_t>()));
  if (steps.empty()) return steps;
  auto numbers = torch::tensor(steps, torch::kLong);
  comm.broadcast(numbers, 0, "the snapshots");
  return {numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel()};
}

// All ranks look at the files that they have in common, and say the same of them.
std::vector<std::pair<std::string, std::string>> by_text(const std::vector<RankFailure>& failures) {
  std::map<std::string, std::vector<int>> ranks;
  for (const auto& failure : failures) ranks[summary_line(failure.text)].push_back(failure.rank);
  std::vector<std::pair<std::string, std::string>> result;
  for (const auto& [text, who] : ranks) {
    auto names = format("{} {}", who.size() == 1 ? "rank" : "ranks", who.front());
    for (size_t i = 1; i < who.size(); ++i) names += format(", {}", who[i]);
    result.emplace_back(std::move(names), text);
  }
  return result;
}

// Nothing when some rank finds it damaged; rank 0 says what each of them found.
std::optional<Candidate> agreed_candidate(const fs::path& dir, int64_t step,
                                          comm::Communicator& comm) {
  std::optional<Candidate> candidate;
  std::string damage;
  try {
    candidate = open_candidate(dir, step, comm);
  } catch (const std::exception& error) {
    damage = error.what();
  }
  const auto failures = gather_failures(comm, damage, "whether a snapshot is complete");
  for (const auto& [ranks, text] : by_text(failures)) {
    log::warn("snapshot",
              format("{} is not used: {}: {}", snapshot_folder(dir, step).string(), ranks, text));
  }
  return failures.empty() ? std::move(candidate) : std::nullopt;
}

/// Puts one optimizer and its model back.
class OptimizerLoader {
 public:
  OptimizerLoader(const std::string& name, DistributedOptimizer& optimizer, const Candidate& from)
      : optimizer_(optimizer),
        training_(read_training_record(from.files, name)),
        rank_(read_rank_record(from.files, name, from.source)),
        model_(from.files.folder() / file_of(name, kModelFile)),
        state_(from.files.folder() / file_of(name, kOptimizerFile)),
        own_(from.files.folder() / file_of(name, rank_tensors_file(from.source))),
        other_ranks_(from.training.world_size != optimizer.comm()->size()),
        is_own_(!other_ranks_ && training_.local_sgd == (optimizer.local_sgd() != nullptr)),
        opaque_(from.files.folder() /
                file_of(name, rank_tensors_file(is_own_ && training_.local_sgd ? from.source : 0))),
        tensors_(
            snapshot_tensors(optimizer, is_own_ ? ModelTensors::kCommon : ModelTensors::kValues)) {}

  std::vector<std::string> differences() const {
    return fleet::differences(training_.strategy, optimizer_.strategy());
  }

  void check() const {
    check_fit(model_, tensors_.model);
    check_fit(state_, tensors_.optimizer, {kLocalSgdNames});
    if (is_own_) check_fit(own_, tensors_.own, {kGeneratorNames, kValueNames, kOpaqueStateNames});
    check_opaque_state(opaque_, optimizer_);
  }

  void load() {
    read_tensors(model_, tensors_.model);
    read_tensors(state_, tensors_.optimizer);
    if (is_own_) read_tensors(own_, tensors_.own);
    set_opaque_state(opaque_, optimizer_);
    restore_local_sgd();
    auto counters = rank_.counters;
    if (other_ranks_) {  // agreed on by fewer or more
      counters.loss_normalizer = 0;
      counters.batch_samples = counters.first_sample = -1;
    }
    optimizer_.set_counters(counters);
  }

 private:
  void restore_local_sgd() const {
    auto* const local = optimizer_.local_sgd();
    if (local == nullptr) return;
    auto state = local->state();  // with the tensors that were read
    state.step = training_.step;
    if (training_.local_sgd) state.interval = rank_.local_sgd.interval;
    if (is_own_) {
      state.step = rank_.local_sgd.step;
      state.window = rank_.local_sgd.window;
    }
    local->set_state(state);
  }

  DistributedOptimizer& optimizer_;
  TrainingRecord training_;
  RankRecord rank_;
  SafetensorsFile model_, state_, own_;
  bool other_ranks_;
  bool is_own_;  // what differs by rank means the same here
  SafetensorsFile opaque_;
  SnapshotTensors tensors_;
};

/// Puts a model back that no optimizer trains.
class ModelLoader {
 public:
  ModelLoader(const NamedModel& named, const SnapshotContents& contents, const Candidate& from)
      : model_(from.files.folder() / file_of(named.name, kModelFile)),
        own_(from.files.folder() / file_of(named.name, rank_tensors_file(from.source))),
        is_own_(from.training.world_size == contents.comm()->size() &&
                from.training.local_sgd == contents.has_local_sgd()),
        tensors_(snapshot_tensors(named.model, *contents.comm(), contents.has_local_sgd())) {}

  void check() const {
    check_fit(model_, tensors_.model);
    if (is_own_) check_fit(own_, tensors_.own);
  }
  void load() const {
    read_tensors(model_, tensors_.model);
    if (is_own_) read_tensors(own_, tensors_.own);
  }

 private:
  SafetensorsFile model_, own_;
  bool is_own_;
  SnapshotTensors tensors_;
};

class Loader {
 public:
  Loader(const SnapshotContents& contents, Candidate candidate)
      : contents_(contents),
        comm_(*contents.comm()),
        from_(std::move(candidate)),
        own_(from_.files.folder() / rank_tensors_file(from_.source)),
        other_ranks_(from_.training.world_size != comm_.size()) {}

  // Nothing is written before all of it is known to fit.
  void load() {
    const torch::NoGradGuard no_grad;
    check_names(from_.training, contents_, from_.files.folder().string());
    std::list<OptimizerLoader> optimizers;
    std::list<ModelLoader> models;
    for (const auto& [name, optimizer] : contents_.optimizers) {
      optimizers.emplace_back(name, *optimizer, from_);
    }
    for (const auto& named : contents_.models) models.emplace_back(named, contents_, from_);
    log_differences(optimizers);
    for (const auto& optimizer : optimizers) optimizer.check();
    for (const auto& model : models) model.check();
    const auto set_values = read_values();
    check_data();

    for (auto& optimizer : optimizers) optimizer.load();
    for (const auto& model : models) model.load();
    set_generators();
    set_values();
    restore_data();
  }

 private:
  void log_differences(const std::list<OptimizerLoader>& optimizers) const {
    if (other_ranks_) {
      log::info("snapshot",
                format("was written by {} ranks and is loaded by {}: all start from rank 0's "
                       "state{}",
                       from_.training.world_size, comm_.size(),
                       from_.training.local_sgd ? " and the last average" : ""));
    }
    auto item = contents_.optimizers.begin();
    for (const auto& optimizer : optimizers) {
      const auto& name = (item++)->name;
      for (const auto& text : optimizer.differences()) {
        log::warn("snapshot",
                  format("the strategy{} is another: {}", name.empty() ? "" : " of " + name, text));
      }
    }
  }

  std::function<void()> read_values() const {
    if (contents_.values.empty()) return [] {};
    const auto rank = other_ranks_ ? 0 : from_.source;
    const auto file = rank_values_file(rank);
    const SafetensorsFile tensors(from_.files.checked(rank_tensors_file(rank)));
    return fleet::read_values(contents_.values, from_.files.text_of(file),
                              (from_.files.folder() / file).string(), &tensors);
  }

  void set_generators() const {
    for (const auto& item : contents_.optimizers) {
      const auto& arena = item.optimizer->arena();
      if (comm_.rank() < from_.training.world_size) {
        set_generator_states(own_, arena);
      } else {
        seed_generators(own_, arena, comm_.rank(), from_.training.step);
      }
    }
  }

  void check_data() const {
    if (!contents_.data.is_known() || from_.training.has_data) return;
    throw Error("snapshot",
                format("{} has no position in the data, so that it is not known which samples "
                       "come next",
                       from_.files.folder().string()),
                "resume without data, or save with it");
  }

  void restore_data() const {
    if (!contents_.data.is_known()) {
      if (from_.training.has_data) {
        log::warn("snapshot", "the position in the data is not restored: no data were given");
      }
      return;
    }
    const auto name = rank_data_file(other_ranks_ ? 0 : from_.source);
    contents_.data.restore(from_.files.text_of(name), (from_.files.folder() / name).string(),
                           other_ranks_);
  }

  const SnapshotContents& contents_;
  comm::Communicator& comm_;
  Candidate from_;
  SafetensorsFile own_;
  bool other_ranks_;
};

}  // namespace

std::optional<int64_t> load_snapshot(const fs::path& dir, const SnapshotContents& contents) {
  contents.check();
  auto& comm = *contents.comm();
  const auto steps = agreed_steps(dir, comm);
  for (const int64_t step : steps) {
    auto candidate = agreed_candidate(dir, step, comm);
    if (!candidate) continue;
    Loader(contents, std::move(*candidate)).load();
    log::info("snapshot", format("resumes after {}, from {}", contents.progress(),
                                 snapshot_folder(dir, step).string()));
    return step;
  }
  if (steps.empty()) return {};
  throw UsageError("snapshot",
                   steps.size() == 1 ? format("the snapshot in {} cannot be used", dir.string())
                                     : format("none of the {} snapshots in {} can be used",
                                              steps.size(), dir.string()),
                   "see the warnings above; move them away to start from the beginning");
}

std::optional<int64_t> load_snapshot(const fs::path& dir, DistributedOptimizer& optimizer,
                                     const DataPosition& data) {
  return load_snapshot(dir, SnapshotContents::of(optimizer, data));
}

}  // namespace fleet
