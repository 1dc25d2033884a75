// SPDX-License-Identifier: Apache-2.0
// A training with local SGD for the tests and the benchmark of elastic jobs: what a user would
// write, slowed down so that accidents can happen to it. Every rank says which process it is, when
// it has made an update, and in the end what it has learned.
//
//   fleetrun --nproc_per_node 2 --elastic --max_restarts 3 test_elastic_program --epochs 4

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <numeric>
#include <optional>
#include <thread>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn.h>

#include "fleet/core/text/format.h"
#include "fleet/fleet.h"

#include "tests/ranks/print_line.h"

namespace {

using fleet::launch::digest;
using fleet::launch::print_line;

struct Options {
  int64_t step_ms = 10;
  std::string until = {};
  bool two = false;
  bool adam = false;
};

const fleet::FieldList& fields_of(const Options*) {
  static const fleet::FieldList list{
      "app",
      {fleet::field<&Options::step_ms>("step_ms", "how long an update takes at least").at_least(0),
       fleet::field<&Options::until>("until", "end after the epoch in which this file appears"),
       fleet::field<&Options::two>("two", "a second net, with an optimizer of its own"),
       fleet::field<&Options::adam>("adam", "train with Adam instead of Momentum")}};
  return list;
}

/// Points of a smooth function.
struct Points : fleet::Dataset {
  int64_t size() const override { return 1024; }
  fleet::Batch get(std::span<const int64_t> indices, int64_t) const override {
    const auto index = torch::tensor(at::IntArrayRef(indices.data(), indices.size()), torch::kLong);
    const auto data = all().index_select(0, index);
    return {data, data.narrow(1, 0, 4).mul(2).tanh()};
  }

 private:
  static const torch::Tensor& all() {
    static const auto points = [] {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
      return torch::randn({1024, 8}, generator);
    }();
    return points;
  }
};

// The same clock in all processes of a machine.
double now_s() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

double loss_of_all(torch::nn::Sequential& net) {
  const torch::NoGradGuard no_grad;
  const Points points;
  std::vector<int64_t> all(static_cast<size_t>(points.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto batch = points.get(all, 0);
  return torch::mse_loss(net->forward(batch.data), batch.target).item<double>();
}

// All ranks end together, whoever sees the file first.
bool is_time_to_end(const std::string& file) {
  const auto seen =
      torch::full({1}, !file.empty() && std::filesystem::exists(file) ? 1 : 0, torch::kLong);
  fleet::world()->all_reduce(seen, fleet::comm::ReduceOp::kMax, "whether it is time to end");
  return seen.item<int64_t>() > 0;
}

std::unique_ptr<fleet::optim::Optimizer> make_optimizer(torch::nn::Sequential& net, bool adam,
                                                        const fleet::TrainConfig& config) {
  if (adam) return std::make_unique<fleet::optim::Adam>(net, fleet::optim::AdamOptions{.lr = 0.01});
  return std::make_unique<fleet::optim::Momentum>(
      net, fleet::optim::MomentumOptions{.lr = config.lr, .momentum = config.momentum});
}

void print_updates(const torch::Tensor& updates) {
  std::string text = "updates of parameters";
  for (int64_t i = 0; i < updates.numel(); ++i) {
    text += fleet::format(" {}", updates[i].item<double>());
  }
  print_line(text);
}

int body(int argc, char** argv) {
  Options own;
  fleet::TrainConfig defaults{.lr = 0.1, .momentum = 0.9, .batch_size = 8, .epochs = 4};
  defaults.strategy.localsgd = true;
  defaults.strategy.localsgd_configs.k_steps = 4;
  const auto config = fleet::parse_train_configs(
      argc, argv, own, defaults,
      {.reads = {"lr", "momentum", "batch_size", "epochs", "snapshots"}});
  print_line(fleet::format("pid {}", ::getpid()));
  fleet::init();
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 4));
  fleet::DataLoader data(std::make_shared<Points>(), {.batch_size = config.batch_size});
  auto optimizer =
      fleet::distributed_optimizer(make_optimizer(net, own.adam, config), config.strategy);
  torch::nn::Linear linear(8, 4);
  std::optional<fleet::DistributedOptimizer> second;
  if (own.two) {
    second.emplace(
        fleet::distributed_optimizer(fleet::optim::Adam(linear, {.lr = 0.01}), config.strategy));
  }
  int64_t averages = 0;
  const std::vector<fleet::SnapshotValue> values = {{"averages", &averages}};
  auto contents = fleet::SnapshotContents::of(optimizer, data, values);
  if (second) {
    contents = {.optimizers = {{"first", &optimizer}, {"second", &*second}},
                .data = data,
                .values = values};
  }
  fleet::Snapshots snapshots(config.snapshots, contents);
  bool is_over = false;
  for (int64_t epoch = snapshots.epoch(); epoch < config.epochs && !is_over; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(own.step_ms));
      const auto report = optimizer.minimize(batch, [&](const fleet::Batch& micro_batch) {
        return torch::mse_loss(net->forward(micro_batch.data), micro_batch.target);
      });
      if (second) {
        second->minimize(batch, [&](const fleet::Batch& micro_batch) {
          return torch::mse_loss(linear->forward(micro_batch.data), micro_batch.target);
        });
      }
      if (report.synced) {
        ++averages;
        print_line(fleet::format("update {} of epoch {} at {:.4f}", report.update, epoch, now_s()));
      }
      snapshots.after_update();
    }
    optimizer.end_epoch();
    if (second) second->end_epoch();
    snapshots.after_epoch();
    is_over = is_time_to_end(own.until);
  }
  snapshots.finish();
  fleet::shutdown();
  if (own.adam) print_updates(optimizer.optimizer().span_updates());
  print_line(fleet::format("averages {}", averages));
  auto parameters = net->parameters();
  if (second) parameters.push_back(linear->weight);
  print_line(fleet::format("digest {:016x}", digest(parameters)));
  print_line(fleet::format("loss {:.6f}", loss_of_all(net)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
