// SPDX-License-Identifier: Apache-2.0
// How long a snapshot holds training up: the copy into memory, beside a plain copy of as many
// bytes; and how long the disk takes behind it.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <torch/nn/module.h>

#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/parallel_chunks.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/adam.h"
#include "fleet/snapshot/snapshots.h"

#include "bench/benches.h"

namespace fleet::bench {
namespace {

constexpr int kRounds = 5;

/// BERT-like: matrices and vectors, about as many millions of numbers as asked for.
class Matrices : public torch::nn::Module {
 public:
  explicit Matrices(int64_t millions) {
    for (int64_t i = 0; i < millions; ++i) {
      register_parameter(format("weight{}", i), torch::ones({1000, 999}));
      register_parameter(format("bias{}", i), torch::ones({1000}));
    }
  }
};

/// A folder on the disk that is removed in the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "fleet-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw Error("bench", "cannot make a folder in TMPDIR");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// memcpy of what a snapshot holds, on as many threads as LibTorch has.
class PlainCopy {
 public:
  explicit PlainCopy(const DistributedOptimizer& optimizer) {
    for (const auto& group : optimizer.arena().groups()) from_.push_back(group.values);
    for (const auto& state : optimizer.optimizer().state()) {
      from_.insert(from_.end(), state.groups.begin(), state.groups.end());
    }
    for (const auto& tensor : from_) to_.push_back(torch::zeros_like(tensor));
  }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& tensor : from_) sum += static_cast<int64_t>(tensor.nbytes());
    return sum;
  }

  void run() {
    for (size_t i = 0; i < from_.size(); ++i) {
      auto* const to = static_cast<char*>(to_[i].mutable_data_ptr());
      const auto* const from = static_cast<const char*>(from_[i].const_data_ptr());
      parallel_ranges(static_cast<int64_t>(from_[i].nbytes()), 1 << 20,
                      [=](int64_t begin, int64_t end) {
                        std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
                      });
    }
  }

 private:
  std::vector<torch::Tensor> from_, to_;
};

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return seconds_since(begin);
}

std::vector<Row> measure(int64_t millions) {
  const auto net = std::make_shared<Matrices>(millions);
  auto optimizer = distributed_optimizer(optim::Adam(net, {.lr = 1e-4}));
  PlainCopy plain(optimizer);
  const Folder folder;
  Snapshots snapshots(optimizer, {.snapshot_dir = folder.path(), .keep = 1});
  Timing stall, copy, disk;
  for (int round = -1; round < kRounds; ++round) {  // the first warms up
    const double copied = seconds_of([&] { plain.run(); });
    const double stalled = seconds_of([&] { snapshots.save(); });
    const double written = seconds_of([&] { snapshots.finish(); });
    if (round < 0) continue;
    copy.seconds.push_back(copied);
    stall.seconds.push_back(stalled);
    disk.seconds.push_back(stalled + written);
  }
  const double gigabytes = static_cast<double>(plain.bytes()) * 1e-9;
  const auto name = format("{} M parameters, Adam, {:.1f} GB: stall", millions, gigabytes);
  return {{name, stall.median() * 1e3, "ms", "memcpy of the bytes", copy.median() * 1e3,
           copy.median() / stall.median(), stall.spread()},
          {name, stall.median() * 1e3, "ms", "until it is on the disk", disk.median() * 1e3,
           disk.median() / stall.median(), disk.spread()}};
}

}  // namespace

std::vector<Row> bench_snapshot() { return measure(100); }
std::vector<Row> bench_snapshot_large() { return measure(335); }

}  // namespace fleet::bench
