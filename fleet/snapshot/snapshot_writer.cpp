// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_writer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/options/options_json.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/io/atomic_file.h"
#include "fleet/snapshot/snapshot_agreement.h"

namespace fleet {

/// What the writing thread needs.
struct SnapshotWriter::Job {
  struct Optimizer {
    std::string name;
    TrainingRecord training;  // written where it has a name
    RankRecord rank;
    Tensors opaque_states;
  };
  TrainingRecord training;
  std::vector<Optimizer> optimizers;
  std::string data;                      // empty: none
  std::string values;                    // without tensors
  Tensors own;                           // generators, and tensors among the values
  std::vector<SnapshotTensors> tensors;  // the copies, or where they lie; in the order of `live`
};

SnapshotWriter::SnapshotWriter(SnapshotContents contents, SnapshotOptions options,
                               const SnapshotLock& lock)
    : contents_(std::move(contents)),
      options_(std::move(options)),
      lock_(lock),
      comm_(contents_.comm()->duplicate("snapshots")) {
  finish_pending_averages();
  // An optimizer that cannot be saved says so now, on all ranks.
  for (const auto& item : contents_.optimizers) {
    const auto& own = item.optimizer->optimizer();
    if (own.has_opaque_state()) own.opaque_state();
  }
  if (comm_->elastic()) return;
  // Now, so that a budget for memory counts it from the start, and with its pages in place.
  copies_.resize(contents_.optimizers.size() + contents_.models.size());
  copy();
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
void SnapshotWriter::finish_pending_averages() {
  for (const auto& item : contents_.optimizers) {
    auto* const local = item.optimizer->local_sgd();
    if (local && local->is_sending()) item.optimizer->sync();
  }
}

// What this rank writes, of the optimizers and then of the models.
std::vector<SnapshotTensors> SnapshotWriter::live() const {
  std::vector<SnapshotTensors> all;
  for (const auto& item : contents_.optimizers) {
    all.push_back(snapshot_tensors(*item.optimizer, ModelTensors::kCommon));
  }
  for (const auto& item : contents_.models) {
    all.push_back(snapshot_tensors(item.model, *comm_, contents_.has_local_sgd()));
  }
  if (comm_->index() == 0) return all;
  for (auto& tensors : all) {
    tensors.model.clear();
    tensors.optimizer.clear();
  }
  return all;
}

int64_t SnapshotWriter::bytes() const {
  int64_t sum = 0;
  for (const auto& all : live()) {
    for (const auto* list : {&all.model, &all.optimizer, &all.own}) {
      for (const auto& [name, tensor] : *list) sum += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return sum;
}

int64_t SnapshotWriter::largest_file() const {
  int64_t largest = 0;
  for (const auto& all : live()) {
    for (const auto* list : {&all.model, &all.optimizer, &all.own}) {
      int64_t sum = 0;
      for (const auto& [name, tensor] : *list) sum += static_cast<int64_t>(tensor.nbytes());
      largest = std::max(largest, sum);
    }
  }
  return largest;
}

void SnapshotWriter::copy() {
  const auto all = live();
  for (size_t i = 0; i < all.size(); ++i) copies_[i].take(all[i]);
}

SnapshotWriter::Job SnapshotWriter::make_job() const {
  if (contents_.before_save) contents_.before_save();
  Job job{.training = training_record(contents_)};
  for (const auto& [name, optimizer] : contents_.optimizers) {
    job.optimizers.push_back(
        {name, training_record(*optimizer), rank_record(*optimizer), opaque_states(*optimizer)});
    for (auto& state : generator_states(optimizer->arena())) {
      const bool is_there =
          std::ranges::any_of(job.own, [&](const auto& own) { return own.name == state.name; });
      if (!is_there) job.own.push_back(std::move(state));
    }
  }
  if (contents_.data.is_known()) job.data = contents_.data.to_json();
  job.values = write_values(contents_.values);
  for (auto& tensor : copied_tensors(contents_.values)) job.own.push_back(std::move(tensor));
  return job;
}

void SnapshotWriter::save() {
  wait();
  const auto begin = std::chrono::steady_clock::now();
  finish_pending_averages();
  auto job = make_job();
  if (comm_->elastic()) return write_with_present_ranks(std::move(job));
  copy();
  for (const auto& copied : copies_) job.tensors.push_back(copied.tensors());
  copy_seconds_ = seconds_since(begin);
  written_ = std::async(std::launch::async, [this, job = std::move(job)] { write(job); });
}

void SnapshotWriter::write_with_present_ranks(Job job) {
  do {
    job.training.world_size = std::ssize(comm_->present());
    job.tensors = live();
    try {
      write(job);
    } catch (const Error& error) {
      if (std::ssize(comm_->present()) == comm_->size()) throw;
      log::warn("snapshot", format("that of update {} is left out, while ranks are lost: {}",
                                   job.training.step, error.what()));
      return;
    }
  } while (!is_complete());
}

// A rank that fails tells the others, who would wait for it; all of them throw.
int64_t SnapshotWriter::together(const char* what, const std::function<int64_t()>& work) {
  if (!is_complete()) return 0;  // one is lost, as all know
  return run_on_all_ranks(*comm_, what, work);
}

void SnapshotWriter::check_same_step(int64_t step) {
  const auto all = comm_->all_gather(torch::full({1}, step, torch::kLong), "a snapshot's step");
  if (!is_complete()) return;
  const auto steps = all.index_select(0, torch::tensor(writers_, torch::kLong));
  const auto most = steps.max().item<int64_t>(), least = steps.min().item<int64_t>();
  if (most == least) return;
  throw Error("snapshot",
              format("one rank has made {} updates and another {}, so they are at different points "
                     "of the training",
                     most, least),
              "give all ranks the same number of batches, or save at the end of epochs "
              "(--save_every 0)");
}

/// Writes into a folder, and notes what was written.
class SnapshotWriter::Files {
 public:
  explicit Files(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void write(const std::string& name, const std::string& text) {
    note(name, write_file_atomically(folder_ / name, text, "snapshot"));
  }
  void write(const std::string& name, const Tensors& tensors) {
    note(name, write_safetensors(folder_ / name, tensors));
  }
  const Written& written() const { return written_; }

 private:
  void note(const std::string& name, uint64_t hash) {
    written_.hashes[name] = hash;
    written_.bytes += static_cast<int64_t>(std::filesystem::file_size(folder_ / name));
  }

  std::filesystem::path folder_;
  Written written_;
};

SnapshotWriter::Written SnapshotWriter::write_files(const std::filesystem::path& folder,
                                                    const Job& job) const {
  Files files(folder);
  const int rank = comm_->index();
  auto own = job.own;
  if (rank == 0) files.write(kTrainingFile, write_json(job.training, TrainingRecord{}));
  auto tensors = job.tensors.begin();
  for (const auto& [name, training, rank_record, opaque] : job.optimizers) {
    auto of_rank = tensors->own;
    of_rank.insert(of_rank.end(), opaque.begin(), opaque.end());
    if (rank == 0) {
      files.write(file_of(name, kModelFile), tensors->model);
      files.write(file_of(name, kOptimizerFile), tensors->optimizer);
      if (!name.empty()) {
        files.write(file_of(name, kTrainingFile), write_json(training, TrainingRecord{}));
      }
    }
    files.write(file_of(name, rank_file(rank)), write_json(rank_record, RankRecord{}));
    if (name.empty()) {  // in one file with the generators
      own.insert(own.begin(), of_rank.begin(), of_rank.end());
    } else {
      files.write(file_of(name, rank_tensors_file(rank)), of_rank);
    }
    ++tensors;
  }
  for (const auto& name : job.training.models) {
    if (rank == 0) files.write(file_of(name, kModelFile), tensors->model);
    files.write(file_of(name, rank_tensors_file(rank)), tensors->own);
    ++tensors;
  }
  files.write(rank_tensors_file(rank), own);
  if (job.training.has_data) files.write(rank_data_file(rank), job.data);
  if (!job.training.values.empty()) files.write(rank_values_file(rank), job.values);
  return files.written();
}

// What all ranks have written, on each of them.
SnapshotWriter::Written SnapshotWriter::gather(const Written& own, const Job& job) {
  std::vector<int64_t> numbers;
  for (const auto& name : files_of_rank(job.training, comm_->index())) {
    numbers.push_back(std::bit_cast<int64_t>(own.hashes.at(name)));
  }
  numbers.push_back(own.bytes);
  const auto all = comm_->all_gather(torch::tensor(numbers, torch::kLong), "hashes of files");
  Written written{.hashes = own.hashes};
  for (int index = 0; index < static_cast<int>(writers_.size()); ++index) {
    const auto row = all[writers_[static_cast<size_t>(index)]];
    int64_t next = 0;
    for (const auto& name : files_of_rank(job.training, index)) {
      written.hashes[name] = std::bit_cast<uint64_t>(row[next++].item<int64_t>());
    }
    written.bytes += row[next].item<int64_t>();
  }
  return written;
}

void SnapshotWriter::write(const Job& job) {
  const torch::NoGradGuard no_grad;
  const auto begin = std::chrono::steady_clock::now();
  const auto& dir = lock_.dir();
  const int64_t step = job.training.step;
  writers_ = comm_->present();
  check_same_step(step);
  std::optional<NewSnapshot> snapshot;
  const auto generation = together("a snapshot's folder", [&]() -> int64_t {
    if (comm_->index() != 0) return 0;
    snapshot.emplace(*lock_.lock(), step);
    return lock_.lock()->generation();
  });
  Written written;
  together("a snapshot's files", [&]() -> int64_t {
    written = write_files(NewSnapshot::hidden(dir, step, generation), job);
    return 0;
  });
  if (!is_complete()) return;
  written = gather(written, job);
  together("a snapshot's last step", [&]() -> int64_t {
    if (!snapshot) return 0;
    snapshot->publish(written.hashes);
    remove_older_snapshots(dir, step,
                           options_.keep > 0 ? options_.keep : std::numeric_limits<int>::max());
    return 0;
  });
  if (!snapshot) return;
  log::info("snapshot",
            format("update {} saved: {} in {:.2f} s, {}", step, byte_size_text(written.bytes),
                   seconds_since(begin), snapshot_folder(dir, step).string()));
}

}  // namespace fleet
