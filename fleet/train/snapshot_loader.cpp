#include "fleet/train/snapshot_loader.h"

#include <algorithm>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/train/snapshot_records.h"
#include "fleet/train/snapshot_tensors.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;

/// A snapshot whose files are whole, as far as this rank has to see to it.
struct Candidate {
  SnapshotReader files;
  TrainingRecord training;
  int64_t source = 0;  // the rank whose files this one reads
  RankRecord rank;
};

// A rank checks what it reads, and its share of what nobody reads.
Candidate open_candidate(const fs::path& dir, int64_t step, const comm::Communicator& comm) {
  Candidate candidate{.files = SnapshotReader(dir, step)};
  const auto& files = candidate.files;
  candidate.training = read_training_record(files);
  const int64_t writers = candidate.training.world_size;
  candidate.source = comm.rank() < writers ? comm.rank() : 0;
  candidate.rank = read_rank_record(files, candidate.source);
  files.checked(kModelFile);
  files.checked(kOptimizerFile);
  for (int64_t rank = comm.rank() % writers; rank < writers; rank += comm.size()) {
    files.checked(rank_file(rank));
    files.checked(rank_tensors_file(rank));
    if (candidate.training.has_data) files.checked(rank_data_file(rank));
  }
  return candidate;
}

std::vector<int64_t> agreed_steps(const fs::path& dir, comm::Communicator& comm) {
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

// Nothing when some rank finds it damaged.
std::optional<Candidate> agreed_candidate(const fs::path& dir, int64_t step,
                                          comm::Communicator& comm) {
  std::optional<Candidate> candidate;
  try {
    candidate = open_candidate(dir, step, comm);
  } catch (const std::exception& error) {
    log::warn_here("snapshot",
                   format("{} is not used. {}", snapshot_folder(dir, step).string(), error.what()));
  }
  const auto refused = torch::full({1}, candidate ? 0 : 1, torch::kLong);
  comm.all_reduce(refused, comm::ReduceOp::kMax, "whether a snapshot is whole");
  if (refused.item<int64_t>() > 0) return {};
  return candidate;
}

class Loader {
 public:
  Loader(DistributedOptimizer& optimizer, Candidate candidate)
      : optimizer_(optimizer),
        comm_(*optimizer.comm()),
        from_(std::move(candidate)),
        model_(from_.files.folder() / kModelFile),
        state_(from_.files.folder() / kOptimizerFile),
        own_(from_.files.folder() / rank_tensors_file(from_.source)),
        other_ranks_(from_.training.world_size != comm_.size()),
        is_own_(!other_ranks_ && from_.training.local_sgd == (optimizer.local_sgd() != nullptr)),
        opaque_(from_.files.folder() /
                rank_tensors_file(is_own_ && from_.training.local_sgd ? from_.source : 0)) {}

  void load(const DataPosition& data) {
    say_what_differs();
    read_all();
    set_generators();
    settle_local_sgd();
    auto counters = from_.rank.counters;
    if (other_ranks_) counters.usual_weight = 0;  // what fewer or more ranks weigh together
    optimizer_.set_counters(counters);
    restore(data);
  }

 private:
  void say_what_differs() const {
    if (other_ranks_) {
      log::info("snapshot",
                format("was written by {} ranks and is taken up by {}: all start from rank 0's "
                       "state{}",
                       from_.training.world_size, comm_.size(),
                       from_.training.local_sgd ? " and the last average" : ""));
    }
    for (const auto& text : differences(from_.training.strategy, optimizer_.strategy())) {
      log::warn("snapshot", format("the strategy is another: {}", text));
    }
  }

  // Nothing is written before all of it is known to fit.
  void read_all() {
    const torch::NoGradGuard no_grad;
    const auto tensors =
        snapshot_tensors(optimizer_, is_own_ ? ModelTensors::kCommon : ModelTensors::kValues);
    check_fit(model_, tensors.model, {});
    check_fit(state_, tensors.optimizer, {kLocalSgdNames});
    if (is_own_) check_fit(own_, tensors.own, {kGeneratorNames, kOpaqueStateNames});
    check_opaque_state(opaque_, optimizer_);
    read_tensors(model_, tensors.model);
    read_tensors(state_, tensors.optimizer);
    if (is_own_) read_tensors(own_, tensors.own);
    set_opaque_state(opaque_, optimizer_);
  }

  void set_generators() const {
    if (comm_.rank() < from_.training.world_size) {
      set_generator_states(own_, optimizer_.arena());
    } else {
      seed_generators(own_, optimizer_.arena(), comm_.rank(), from_.training.step);
    }
  }

  void settle_local_sgd() const {
    auto* const local = optimizer_.local_sgd();
    if (local == nullptr) return;
    auto state = local->state();  // with the tensors that were read
    const auto& then = from_.rank.local_sgd;
    state.step = from_.training.step;
    if (from_.training.local_sgd) state.interval = then.interval;
    if (is_own_) {
      state.step = then.step;
      state.window = then.window;
    }
    local->set_state(state);
  }

  void restore(const DataPosition& data) const {
    if (!data.is_known()) {
      if (from_.training.has_data) {
        log::warn("snapshot", "the position in the data is left alone: no data were given");
      }
      return;
    }
    const auto name = rank_data_file(other_ranks_ ? 0 : from_.source);
    if (!from_.training.has_data) {
      throw Error("snapshot",
                  format("{} has no position in the data, so that it is not known which samples "
                         "come next",
                         from_.files.folder().string()),
                  "resume without data, or save with it");
    }
    data.restore(from_.files.text_of(name), (from_.files.folder() / name).string(), other_ranks_);
  }

  DistributedOptimizer& optimizer_;
  comm::Communicator& comm_;
  Candidate from_;
  SafetensorsFile model_, state_, own_;
  bool other_ranks_;
  bool is_own_;  // what differs by rank means the same here
  SafetensorsFile opaque_;
};

}  // namespace

std::optional<int64_t> load_snapshot(const fs::path& dir, DistributedOptimizer& optimizer,
                                     const DataPosition& data) {
  auto& comm = *optimizer.comm();
  const auto steps = agreed_steps(dir, comm);
  for (const int64_t step : steps) {
    auto candidate = agreed_candidate(dir, step, comm);
    if (!candidate) continue;
    Loader(optimizer, std::move(*candidate)).load(data);
    log::info("snapshot", format("goes on after update {}, from {}", optimizer.updates(),
                                 snapshot_folder(dir, step).string()));
    return step;
  }
  if (steps.empty()) return {};
  throw Error("snapshot",
              format("none of the {} snapshots in {} can be used", steps.size(), dir.string()),
              "see the warnings above; move them away to start from the beginning");
}

}  // namespace fleet
