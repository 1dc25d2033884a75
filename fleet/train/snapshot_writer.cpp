#include "fleet/train/snapshot_writer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/options_json.h"
#include "fleet/core/seconds_since.h"
#include "fleet/io/new_file.h"

namespace fleet {

/// What the writing thread needs.
struct SnapshotWriter::Job {
  TrainingRecord training;
  RankRecord rank;
  std::string data;  // empty: none
  Tensors generators;
  Tensors opaque_states;
  SnapshotTensors tensors;  // the copy, or where they lie
};

SnapshotWriter::SnapshotWriter(DistributedOptimizer& optimizer, SnapshotOptions options,
                               DataPosition data)
    : optimizer_(optimizer),
      options_(std::move(options)),
      data_(std::move(data)),
      comm_(optimizer.comm()->duplicate("snapshots")) {
  bring_in_average();
  // An optimizer that cannot be saved says so now, on all ranks.
  if (optimizer.optimizer().has_opaque_state()) optimizer.optimizer().opaque_state();
  if (comm_->elastic()) return;
  // Now, so that a budget for memory counts it from the start, and with its pages in place.
  copy_.take(live());
}

SnapshotWriter::~SnapshotWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    log::warn_here("snapshot", format("the last one was not written: {}", error.what()));
  }
}

void SnapshotWriter::wait() {
  if (written_.valid()) written_.get();
}

// A delayed average belongs to no single moment; all ranks are here.
void SnapshotWriter::bring_in_average() {
  if (auto* local = optimizer_.local_sgd(); local && local->is_sending()) optimizer_.sync();
}

// What this rank writes.
SnapshotTensors SnapshotWriter::live() const {
  auto tensors = snapshot_tensors(optimizer_, ModelTensors::kCommon);
  if (comm_->index() > 0) {
    tensors.model.clear();
    tensors.optimizer.clear();
  }
  return tensors;
}

void SnapshotWriter::save() {
  wait();
  const auto begin = std::chrono::steady_clock::now();
  bring_in_average();
  Job job{.training = training_record(optimizer_, data_.is_known()),
          .rank = rank_record(optimizer_)};
  if (data_.is_known()) job.data = data_.to_json();
  job.generators = generator_states(optimizer_.arena());
  job.opaque_states = opaque_states(optimizer_);
  if (comm_->elastic()) return write_by_those_present(std::move(job));
  copy_.take(live());
  job.tensors = copy_.tensors();
  copy_seconds_ = seconds_since(begin);
  written_ = std::async(std::launch::async, [this, job = std::move(job)] { write(job); });
}

void SnapshotWriter::write_by_those_present(Job job) {
  do {
    job.training.world_size = std::ssize(comm_->present());
    job.tensors = live();
    try {
      write(job);
    } catch (const Error& error) {
      if (std::ssize(comm_->present()) == comm_->size()) throw;
      // One that is lost because it is stopped may still hold the folder.
      log::warn("snapshot", format("that of update {} is left out, while ranks are lost: {}",
                                   job.training.step, error.what()));
      return;
    }
  } while (!is_complete());
}

// A rank that fails tells the others, who would wait for it; all of them throw.
template <typename Work>
void SnapshotWriter::together(const char* what, Work&& work) {
  if (!is_complete()) return;  // one is lost, as all know
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  const auto failed = torch::full({1}, failure ? comm_->rank() + 1 : 0, torch::kLong);
  comm_->all_reduce(failed, comm::ReduceOp::kMax, what);
  if (failure) std::rethrow_exception(failure);
  if (const auto rank = failed.item<int64_t>(); rank > 0) {
    throw Error("snapshot", format("rank {} could not write its part, as it says itself", rank - 1),
                "look into that rank's log");
  }
}

void SnapshotWriter::check_same_step(int64_t step) {
  const auto all = comm_->all_gather(torch::full({1}, step, torch::kLong), "a snapshot's step");
  if (!is_complete()) return;
  const auto steps = all.index_select(0, torch::tensor(writers_, torch::kLong));
  const auto most = steps.max().item<int64_t>(), least = steps.min().item<int64_t>();
  if (most == least) return;
  throw Error("snapshot",
              format("one rank has made {} updates and another {}, so this is no moment that they "
                     "have in common",
                     most, least),
              "give all ranks the same number of batches, or save at the end of epochs "
              "(--save_every 0)");
}

FileHashes SnapshotWriter::write_files(const std::filesystem::path& folder, const Job& job) const {
  FileHashes hashes;
  const auto write_text = [&](const std::string& name, const std::string& text) {
    hashes[name] = write_new_file(folder / name, text, "snapshot");
  };
  const auto write_tensors = [&](const std::string& name, const Tensors& tensors) {
    hashes[name] = write_safetensors(folder / name, tensors);
  };
  const int rank = comm_->index();
  if (rank == 0) {
    write_tensors(kModelFile, job.tensors.model);
    write_tensors(kOptimizerFile, job.tensors.optimizer);
    write_text(kTrainingFile, write_json(job.training, TrainingRecord{}));
  }
  auto own = job.tensors.own;
  own.insert(own.end(), job.generators.begin(), job.generators.end());
  own.insert(own.end(), job.opaque_states.begin(), job.opaque_states.end());
  write_tensors(rank_tensors_file(rank), own);
  write_text(rank_file(rank), write_json(job.rank, RankRecord{}));
  if (job.training.has_data) write_text(rank_data_file(rank), job.data);
  return hashes;
}

// The hashes of all ranks' files, on each of them.
FileHashes SnapshotWriter::gather(const FileHashes& own, const Job& job) {
  const auto names_of = [&](int rank) {
    std::vector<std::string> names = {rank_file(rank), rank_tensors_file(rank)};
    if (job.training.has_data) names.push_back(rank_data_file(rank));
    return names;
  };
  std::vector<int64_t> numbers;
  for (const auto& name : names_of(comm_->index())) {
    numbers.push_back(std::bit_cast<int64_t>(own.at(name)));
  }
  const auto all = comm_->all_gather(torch::tensor(numbers, torch::kLong), "hashes of files");
  FileHashes hashes = own;
  for (int index = 0; index < static_cast<int>(writers_.size()); ++index) {
    const auto row = all[writers_[static_cast<size_t>(index)]];
    int64_t next = 0;
    for (const auto& name : names_of(index)) {
      hashes[name] = std::bit_cast<uint64_t>(row[next++].item<int64_t>());
    }
  }
  return hashes;
}

void SnapshotWriter::write(const Job& job) {
  const torch::NoGradGuard no_grad;
  const std::filesystem::path dir = options_.snapshot_dir;
  const int64_t step = job.training.step;
  writers_ = comm_->present();
  check_same_step(step);
  std::optional<NewSnapshot> snapshot;
  FileHashes hashes;
  together("a snapshot's folder", [&] {
    if (comm_->index() == 0) snapshot.emplace(dir, step);
  });
  together("a snapshot's files",
           [&] { hashes = write_files(NewSnapshot::hidden(dir, step), job); });
  if (!is_complete()) return;
  hashes = gather(hashes, job);
  together("a snapshot's last step", [&] {
    if (!snapshot) return;
    snapshot->publish(hashes);
    remove_older_snapshots(dir, step,
                           options_.keep > 0 ? options_.keep : std::numeric_limits<int>::max());
  });
}

}  // namespace fleet
