// SPDX-License-Identifier: Apache-2.0
// A training that resumes from snapshots, as a user would write it, and the faults that tests
// inject into it. It prints its pid, what it resumed from, each update, and in the end a digest of
// its parameters.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <torch/nn.h>

#include "fleet/data/images/in_memory_images.h"
#include "fleet/fleet.h"

#include "tests/ranks/print_line.h"

namespace {

using fleet::launch::print_line;
namespace nn = torch::nn;

constexpr int64_t kGlobalBatch = 32;

struct Options {
  std::string fault = "none";
  int fault_rank = 0;
  int64_t fault_step = 0;
  int slow_rank = -1;
  int64_t slow_until = 0;
  int64_t update_ms = 0;
};

const fleet::FieldList& fields_of(const Options*) {
  using O = Options;
  static const fleet::FieldList list{
      "app",
      {fleet::field<&O::fault>("fault", "what happens in the first attempt")
           .one_of({"none", "kill", "stop", "throw", "memory", "usage", "term", "fill"}),
       fleet::field<&O::fault_rank>("fault_rank", "to whom"),
       fleet::field<&O::fault_step>("fault_step", "in which update, counted from 1"),
       fleet::field<&O::slow_rank>("slow_rank", "who takes four times as long; -1: nobody"),
       fleet::field<&O::slow_until>("slow_until", "up to which update"),
       fleet::field<&O::update_ms>("update_ms", "that an update takes at least")}};
  return list;
}

// Until the disk has no page left, once the snapshot that is due by then is on it: that one is to
// be resumed.
void fill_disk_of(const std::filesystem::path& folder, int64_t saved) {
  const auto snapshot = folder / fleet::format("step-{:08}", saved);
  while (saved > 0 && !std::filesystem::exists(snapshot))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::ofstream file(folder.parent_path() / "filler", std::ios::binary);
  const std::string page(4096, 'x');
  while (file << page << std::flush) {
  }
}

void meet(const std::string& fault, const fleet::SnapshotOptions& snapshots, int64_t updates) {
  print_line("meets " + fault);
  if (fault == "fill") {
    const int64_t every = std::max<int64_t>(snapshots.save_every, 1);
    fill_disk_of(snapshots.snapshot_dir, updates / every * every);
  }
  if (fault == "kill") ::raise(SIGKILL);
  if (fault == "stop") ::raise(SIGSTOP);
  if (fault == "term") ::raise(SIGTERM);
  if (fault == "throw") throw fleet::Error("app", "sample 7 is not a picture", "remove it");
  if (fault == "usage") throw fleet::UsageError("app", "there is no such data set");
  if (fault == "memory") torch::ones({int64_t{1} << 45});
}

std::shared_ptr<const fleet::Dataset> make_data() {
  torch::manual_seed(5);
  const auto pixels = torch::randint(0, 256, {320, 8, 8}, torch::kByte);
  const auto labels = pixels.flatten(1).to(torch::kLong).sum(1).remainder(10);
  return std::make_shared<fleet::InMemoryImages>(pixels, labels,
                                                 fleet::PixelStatistics{.mean = 0.5, .std = 0.3});
}

int body(int argc, char** argv) {
  Options own;
  const auto config = fleet::parse_train_configs(argc, argv, own, {.lr = 0.05, .epochs = 4},
                                                 {.reads = {"lr", "epochs", "seed", "snapshots"}});
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const bool is_first_attempt = attempt == nullptr || attempt == std::string("0");
  print_line(fleet::format("pid {}", ::getpid()));
  fleet::init();
  const int rank = fleet::worker_index(), ranks = fleet::worker_num();
  fleet::DataLoader data(make_data(), {.batch_size = kGlobalBatch / ranks, .seed = config.seed});
  torch::manual_seed(static_cast<uint64_t>(rank) + 1);  // rank 0's weights win; masks differ
  nn::Sequential net(nn::Flatten(), nn::Linear(64, 32), nn::Tanh(), nn::Dropout(0.2),
                     nn::Linear(32, 10));
  auto optimizer = fleet::distributed_optimizer(
      fleet::optim::Momentum(net, {.lr = config.lr, .momentum = 0.9}), config.strategy);
  fleet::Snapshots snapshots(optimizer, config.snapshots, data);
  print_line(fleet::format("resumed {}", snapshots.resumed().value_or(0)));

  for (int64_t epoch = snapshots.epoch(); epoch < config.epochs; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      const int64_t step = optimizer.attempts() + 1;
      if (is_first_attempt && step == own.fault_step && rank == own.fault_rank) {
        meet(own.fault, config.snapshots, step - 1);
      }
      const bool is_slow = rank == own.slow_rank && step <= own.slow_until;
      std::this_thread::sleep_for(std::chrono::milliseconds(own.update_ms * (is_slow ? 4 : 1)));
      const auto report = optimizer.minimize(batch, [&](const fleet::Batch& micro_batch) {
        return nn::functional::cross_entropy(net->forward(micro_batch.data), micro_batch.target);
      });
      print_line(fleet::format("step {} loss {:.9g}", step, report.loss));
      snapshots.after_update();
    }
    optimizer.end_epoch();
    snapshots.after_epoch();
  }
  snapshots.finish();
  print_line(fleet::format("digest {:016x}", fleet::launch::digest(net->parameters())));
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
