// SPDX-License-Identifier: Apache-2.0
// A training with two nets, each with an optimizer of its own, in one snapshot, as a user would
// write it: a generator of points on a curve, and a discriminator. It says its pid, what it resumed
// from, each update, and in the end a digest of all that it has learned and counted.

#include <unistd.h>

#include <limits>

#include <torch/nn.h>

#include "fleet/fleet.h"

#include "tests/ranks/print_line.h"

namespace {

using fleet::launch::print_line;
namespace nn = torch::nn;

struct Curve : fleet::Dataset {
  int64_t size() const override { return 320; }
  fleet::Batch get(std::span<const int64_t> indices, int64_t) const override {
    const auto turn =
        torch::tensor(at::IntArrayRef(indices.data(), indices.size()), torch::kLong) / 50.0;
    return {torch::stack({turn.cos(), turn.sin()}, 1).to(torch::kFloat), turn};
  }
};

int body(int argc, char** argv) {
  const auto config = fleet::parse_train_configs(argc, argv, {.lr = 0.02, .epochs = 12});
  print_line(fleet::format("pid {}", ::getpid()));
  fleet::init();
  const int rank = fleet::worker_index(), ranks = fleet::worker_num();
  fleet::DataLoader data(
      std::make_shared<Curve>(),
      {.batch_size = 32 / ranks, .seed = config.seed, .rank = rank, .world_size = ranks});
  torch::manual_seed(static_cast<uint64_t>(rank) + 1);  // rank 0's weights win; noise differs
  nn::Sequential generator(nn::Linear(8, 16), nn::BatchNorm1d(16), nn::ReLU(), nn::Linear(16, 2));
  nn::Sequential discriminator(nn::Linear(2, 16), nn::Tanh(), nn::Dropout(0.1), nn::Linear(16, 1));
  auto g = fleet::distributed_optimizer(fleet::optim::Adam(generator, {.lr = config.lr}),
                                        config.strategy);
  auto d = fleet::distributed_optimizer(fleet::optim::Momentum(discriminator, {.lr = config.lr}),
                                        config.strategy);
  double best_loss = std::numeric_limits<double>::infinity();
  int64_t patience = 0;
  auto sums = torch::zeros({2}, torch::kDouble);
  fleet::Snapshots snapshots(
      config.snapshots,
      {.optimizers = {{"generator", &g}, {"discriminator", &d}},
       .data = data,
       .values = {{"best_loss", &best_loss}, {"patience", &patience}, {"sums", &sums}}});
  print_line(fleet::format("resumed {}", snapshots.resumed().value_or(0)));

  const auto is_real = [&](const torch::Tensor& points, double target) {
    const auto scores = discriminator->forward(points);
    return nn::functional::binary_cross_entropy_with_logits(scores,
                                                            torch::full_like(scores, target));
  };
  const auto make = [&](int64_t count) { return generator->forward(torch::randn({count, 8})); };
  for (int64_t epoch = snapshots.epoch(); epoch < config.epochs; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      const auto told = d.minimize(batch, [&](const fleet::Batch& micro_batch) {
        return is_real(micro_batch.data, 1) + is_real(make(micro_batch.size()).detach(), 0);
      });
      for (auto& parameter : discriminator->parameters()) parameter.requires_grad_(false);
      const auto made = g.minimize(batch, [&](const fleet::Batch& micro_batch) {
        return is_real(make(micro_batch.size()), 1);
      });
      for (auto& parameter : discriminator->parameters()) parameter.requires_grad_(true);
      patience = made.loss < best_loss ? 0 : patience + 1;
      best_loss = std::min(best_loss, made.loss);
      sums += torch::tensor({told.loss, made.loss}, torch::kDouble);
      print_line(fleet::format("step {} loss {:.9g}", made.update, made.loss));
      snapshots.after_update();
    }
    g.end_epoch();
    d.end_epoch();
    snapshots.after_epoch();
  }
  snapshots.finish();
  auto all = generator->parameters();
  for (const auto& list :
       {generator->buffers(), discriminator->parameters(),
        std::vector<torch::Tensor>{sums, torch::tensor({best_loss, double(patience)})}}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  print_line(fleet::format("digest {:016x}", fleet::launch::digest(all)));
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
