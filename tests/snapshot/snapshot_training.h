// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "fleet/snapshot/snapshots.h"

#include "tests/train/block_net.h"

namespace fleet::testing {

inline Comm single_rank() { return std::make_shared<comm::Communicator>(); }

/// A training that can stop and resume.
struct SnapshotTraining {
  std::string name = {};  // for a failure
  DistributedStrategy strategy = {};
  std::string optimizer = "Momentum";
  double lr = 0.1;
  double dropout = 0;
  bool by_calls = false;  // `minimize(closure)`, k_steps times for an update
  bool has_schedule = false;
};

/// One rank's net and optimizer.
class TrainingRank {
 public:
  TrainingRank(const SnapshotTraining& setup, const Comm& comm)
      : setup_(setup),
        comm_(comm),
        net_(BlockNetOptions{.blocks = 2, .dropout = setup.dropout}),
        optimizer_(make(setup, net_), strategy(setup, net_), comm) {
    if (setup.has_schedule) {
      optimizer_.set_schedule(optim::cosine({.lr = setup.lr, .updates = 12}));
    }
  }

  /// Updates `begin` to `end`, counted from 0.
  void train(int64_t begin, int64_t end) {
    losses_.clear();
    for (int64_t step = begin; step < end; ++step) {
      const auto batch = small_batch(12, step * comm_->size() + comm_->rank());
      if (!setup_.by_calls) {
        note(optimizer_.minimize(
            batch, [&](const Batch& micro_batch) { return net_->loss(micro_batch); }));
        continue;
      }
      const int calls = setup_.strategy.gradient_merge_configs.k_steps;
      for (int call = 0; call < calls; ++call) {
        note(optimizer_.minimize(
            [&] { return net_->loss(batch.slice(call * 12 / calls, (call + 1) * 12 / calls)); }));
      }
    }
  }

  DistributedOptimizer& optimizer() { return optimizer_; }
  BlockNet& net() { return net_; }

  /// All that a later update depends on, and the losses of the last `train`.
  Outcome outcome() {
    Outcome result{.losses = losses_};
    result.parameters = copies(net_->parameters());
    for (const auto& span : optimizer_.arena().spans()) result.parameters.push_back(span.value);
    for (const auto& [name, groups] : optimizer_.optimizer().state()) {
      result.parameters.insert(result.parameters.end(), groups.begin(), groups.end());
    }
    result.parameters = copies(result.parameters);
    result.buffers = copies(net_->buffers());
    const auto counters = optimizer_.counters();
    for (const double number :
         {double(counters.updates), double(counters.attempts), double(counters.calls), counters.lr,
          double(counters.scaler.scale), double(counters.scaler.good_in_a_row),
          double(counters.scaler.skipped_total), counters.loss_normalizer}) {
      result.losses.push_back(number);
    }
    return result;
  }

 private:
  static std::unique_ptr<optim::Optimizer> make(const SnapshotTraining& setup,
                                                const BlockNet& net) {
    if (setup.optimizer == "SGD") {
      return std::make_unique<optim::SGD>(net, optim::SgdOptions{.lr = setup.lr});
    }
    if (setup.optimizer == "Adam") {
      return std::make_unique<optim::Adam>(net, optim::AdamOptions{.lr = setup.lr / 10});
    }
    return std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = setup.lr});
  }

  static DistributedStrategy strategy(const SnapshotTraining& setup, const BlockNet& net) {
    auto result = setup.strategy;
    if (result.recompute) result.recompute_configs.checkpoints = net->checkpoints();
    return result;
  }

  void note(const UpdateReport& report) { losses_.push_back(report.loss); }

  SnapshotTraining setup_;
  Comm comm_;
  BlockNet net_;
  DistributedOptimizer optimizer_;
  std::vector<double> losses_;
};

}  // namespace fleet::testing
