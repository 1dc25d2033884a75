// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>

#include "fleet/data/data_loader.h"
#include "fleet/data/dataset.h"
#include "fleet/snapshot/snapshots.h"

#include "tests/train/block_net.h"

namespace fleet::testing {

/// 40 points of a curve.
class CurvePoints : public Dataset {
 public:
  int64_t size() const override { return 40; }
  Batch get(std::span<const int64_t> indices, int64_t) const override {
    const auto numbers =
        torch::tensor(at::IntArrayRef(indices.data(), indices.size()), torch::kLong);
    const auto turn = numbers.to(torch::kFloat) / 6.5;
    return {torch::stack({turn.cos(), turn.sin(), turn / 7}, 1), numbers};
  }
};

/// One rank of a training with a net that makes points, one that tells them from those of a curve,
/// an average of the first one's weights, and numbers of its own.
class TwoNets {
 public:
  TwoNets(const DistributedStrategy& strategy, const Comm& comm)
      : comm_(comm),
        data_(std::make_shared<CurvePoints>(),
              {.batch_size = 4, .seed = 3, .rank = comm->rank(), .world_size = comm->size()}),
        makes_(net_of(4, 3, /*norm=*/true)),
        tells_(net_of(3, 1, /*norm=*/false)),
        average_(net_of(4, 3, /*norm=*/true)),
        makes_optimizer_(std::make_unique<optim::Adam>(makes_, optim::AdamOptions{.lr = 0.01}),
                         strategy, comm),
        tells_optimizer_(
            std::make_unique<optim::Momentum>(tells_, optim::MomentumOptions{.lr = 0.05}), strategy,
            comm) {}

  SnapshotContents contents() {
    return {.optimizers = {{"generator", &makes_optimizer_}, {"discriminator", &tells_optimizer_}},
            .models = {{"average", average_}},
            .data = data_,
            .values = {{"best_loss", &best_loss_},
                       {"patience", &patience_},
                       {"history", &history_},
                       {"losses", &losses_}}};
  }

  /// The epochs that are left, or up to `stop_after` updates of the generator. The discriminator
  /// has two for each.
  void train(Snapshots* snapshots, int64_t epochs, int64_t stop_after = 1000,
             const std::function<void(int64_t updates)>& then = {}) {
    for (int64_t epoch = data_.state().epoch; epoch < epochs; ++epoch) {
      for (const auto& batch : data_.epoch(epoch)) {
        update(batch);
        if (snapshots) snapshots->after_update();
        if (then) then(makes_optimizer_.attempts());
        if (makes_optimizer_.attempts() == stop_after) return;
      }
      makes_optimizer_.end_epoch();
      tells_optimizer_.end_epoch();
      if (snapshots) snapshots->after_epoch();
    }
  }

  void update(const Batch& batch) {
    for (int i = 0; i < 2; ++i) {
      tells_optimizer_.minimize(batch, [&](const Batch& micro_batch) {
        const auto made = make(micro_batch).detach();
        return score(micro_batch.data, false).neg().sigmoid().mean() +
               score(made, false).sigmoid().mean();
      });
    }
    const auto report = makes_optimizer_.minimize(batch, [&](const Batch& micro_batch) {
      return score(make(micro_batch), true).neg().sigmoid().mean();
    });
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < average_->parameters().size(); ++i) {
      average_->parameters()[i].lerp_(makes_->parameters()[i], 0.25);
    }
    history_.push_back(report.loss);
    losses_ = torch::tensor(history_);
    patience_ = report.loss < best_loss_ ? 0 : patience_ + 1;
    best_loss_ = std::min(best_loss_, report.loss);
  }

  /// All that a later update depends on.
  Outcome outcome() {
    Outcome result{.losses = history_};
    for (auto* optimizer : {&makes_optimizer_, &tells_optimizer_}) {
      for (const auto& span : optimizer->arena().spans()) result.parameters.push_back(span.value);
      for (const auto& [name, groups] : optimizer->optimizer().state()) {
        result.parameters.insert(result.parameters.end(), groups.begin(), groups.end());
      }
      result.losses.push_back(static_cast<double>(optimizer->updates()));
      result.losses.push_back(static_cast<double>(optimizer->attempts()));
    }
    for (const auto& parameter : average_->parameters()) result.parameters.push_back(parameter);
    if (losses_.defined()) result.parameters.push_back(losses_);
    result.parameters = copies(result.parameters);
    for (const auto& net : {makes_, tells_, average_}) {
      for (const auto& buffer : net->buffers()) result.buffers.push_back(buffer.clone());
    }
    result.losses.push_back(best_loss_);
    result.losses.push_back(static_cast<double>(patience_));
    return result;
  }

  const Comm& comm() const { return comm_; }
  DataLoader<>& data() { return data_; }
  DistributedOptimizer& generator() { return makes_optimizer_; }
  DistributedOptimizer& discriminator() { return tells_optimizer_; }
  torch::nn::Sequential& generator_net() { return makes_; }
  torch::nn::Sequential& average_net() { return average_; }
  double best_loss() const { return best_loss_; }
  int64_t patience() const { return patience_; }

  void sync() {
    makes_optimizer_.sync();
    tells_optimizer_.sync();
  }

 private:
  static torch::nn::Sequential net_of(int64_t in, int64_t out, bool norm) {
    static std::mutex seed_mutex;  // ranks are threads here
    const std::lock_guard lock(seed_mutex);
    torch::manual_seed(in);
    torch::nn::Sequential net(torch::nn::Linear(in, 8));
    if (norm) net->push_back(torch::nn::BatchNorm1d(8));
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(8, out));
    return net;
  }

  torch::Tensor make(const Batch& micro_batch) {
    // Noise by sample, as ranks that are threads share a generator.
    const auto noise =
        torch::stack({micro_batch.target, micro_batch.target * 3, micro_batch.target * 7 + 1}, 1);
    return makes_->forward(
        torch::cat({noise.to(torch::kFloat).sin(), micro_batch.data.narrow(1, 0, 1) * 0.1}, 1));
  }

  // `frozen`: the gradient passes through, and leaves nothing behind.
  torch::Tensor score(const torch::Tensor& points, bool frozen) {
    if (!frozen) return tells_->forward(points);
    const auto weights = tells_->parameters();
    const auto hidden = torch::linear(points, weights[0].detach(), weights[1].detach()).tanh();
    return torch::linear(hidden, weights[2].detach(), weights[3].detach());
  }

  Comm comm_;
  DataLoader<> data_;
  torch::nn::Sequential makes_, tells_, average_;
  DistributedOptimizer makes_optimizer_, tells_optimizer_;
  double best_loss_ = std::numeric_limits<double>::infinity();
  int64_t patience_ = 0;
  std::vector<double> history_;
  torch::Tensor losses_;
};

}  // namespace fleet::testing
