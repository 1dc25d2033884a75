// SPDX-License-Identifier: Apache-2.0
// Adam and LAMB count the updates of each parameter, through everything that a training may do.
#include <torch/optim/adam.h>

#include "fleet/optim/lamb.h"
#include "fleet/snapshot/snapshots.h"

#include "tests/data/temporary_folder.h"
#include "tests/train/small_training.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

/// Two branches, each in use on request.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    static std::mutex seed_mutex;  // ranks are threads here
    const std::lock_guard lock(seed_mutex);
    torch::manual_seed(8);
    left = register_module("left", torch::nn::Linear(6, 3));
    right = register_module("right", torch::nn::Linear(6, 3));
  }
  torch::Tensor loss(const Batch& batch, bool use_left, bool use_right) {
    auto out = torch::zeros({batch.size(), 3});
    if (use_left) out = out + left(batch.data);
    if (use_right) out = out + right(batch.data);
    return torch::nn::functional::cross_entropy(out, batch.target);
  }
  torch::nn::Linear left{nullptr}, right{nullptr};
};
TORCH_MODULE(Branches);

bool uses_left(int64_t step) { return step % 4 != 3; }
// Rank 1 uses it once more.
bool uses_right(int64_t step, int rank = 0) {
  return !uses_left(step) || step == 1 || step > 5 || (rank == 1 && step == 4);
}

std::vector<double> counts(const DistributedOptimizer& optimizer) {
  const auto& updates = optimizer.optimizer().span_updates();
  return {updates.data_ptr<double>(), updates.data_ptr<double>() + updates.numel()};
}

std::unique_ptr<optim::Optimizer> make_adam(const Branches& net) {
  return std::make_unique<optim::Adam>(net, optim::AdamOptions{.lr = 0.01});
}

DistributedStrategy with_unused(DistributedStrategy strategy = {}) {
  strategy.find_unused_parameters = true;
  return strategy;
}

TEST(ParameterUpdatesTest, BranchesThatPauseTrainAsUnderTorchOnAnyNumberOfRanks) {
  Branches theirs;
  torch::optim::Adam adam(theirs->parameters(), torch::optim::AdamOptions(0.01));
  for (int64_t step = 0; step < 12; ++step) {
    adam.zero_grad();
    theirs->loss(small_batch(8, step), uses_left(step), uses_right(step)).backward();
    adam.step();
  }
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](const Comm& comm) {
      Branches net;
      DistributedOptimizer optimizer(make_adam(net), with_unused(), comm);
      for (int64_t step = 0; step < 12; ++step) {
        const auto batch = small_batch(8, step);
        const auto own = ranks == 1 ? batch : batch.slice(4 * comm->rank(), 4 * comm->rank() + 4);
        optimizer.minimize(own, [&](const Batch& micro_batch) {
          return net->loss(micro_batch, uses_left(step), uses_right(step));
        });
      }
      EXPECT_EQ(counts(optimizer), (std::vector<double>{9, 9, 8, 8}));
      expect_close(copies(net->parameters()), copies(theirs->parameters()), 1e-4, 1e-5);
    });
  }
}

struct BranchTraining {
  std::string name;
  int ranks = 1;
  DistributedStrategy strategy = {};
  std::function<std::unique_ptr<optim::Optimizer>(const Branches&)> make = make_adam;
};

// Counts differ by rank under local SGD.
void train(const BranchTraining& setup, const Comm& comm, int64_t begin, int64_t end,
           const std::filesystem::path& folder, std::vector<Tensors>& results) {
  Branches net;
  DistributedOptimizer optimizer(setup.make(net), with_unused(setup.strategy), comm);
  if (begin > 0) {
    EXPECT_EQ(load_snapshot(folder, optimizer), begin);
  }
  for (int64_t step = begin; step < end; ++step) {
    optimizer.minimize(
        small_batch(8, step * comm->size() + comm->rank()), [&](const Batch& micro_batch) {
          return net->loss(micro_batch, uses_left(step), uses_right(step, comm->rank()));
        });
    if (begin == 0 && step + 1 == 5) save_snapshot(folder, optimizer);
  }
  auto own = copies(net->parameters());
  own.push_back(optimizer.optimizer().span_updates().clone());
  results[static_cast<size_t>(comm->rank())] = own;
  optimizer.sync();
}

TEST(ParameterUpdatesTest, ResumedIsNeverStoppedWhereParametersPaused) {
  const DistributedStrategy local{.localsgd = true, .localsgd_configs = {.k_steps = 3}};
  auto average = local;
  average.localsgd_configs.optimizer_state = "average";
  const auto make_adamw = [](const Branches& net) {
    return std::make_unique<optim::AdamW>(net, optim::AdamWOptions{.lr = 0.01});
  };
  const auto make_lamb = [](const Branches& net) {
    return std::make_unique<optim::Lamb>(net, optim::LambOptions{.lr = 0.01});
  };
  for (const auto& setup : std::vector<BranchTraining>{
           {.name = "Adam"},
           {.name = "AdamW", .make = make_adamw},
           {.name = "LAMB", .make = make_lamb},
           {.name = "Adam on two ranks", .ranks = 2},
           {.name = "local SGD", .ranks = 2, .strategy = local},
           {.name = "LAMB and local SGD", .ranks = 2, .strategy = local, .make = make_lamb},
           {.name = "averaged moments", .ranks = 2, .strategy = average},
       }) {
    SCOPED_TRACE(setup.name);
    const TemporaryFolder folder;
    std::vector<Tensors> whole(2), resumed(2);
    run_ranks(setup.ranks,
              [&](const Comm& comm) { train(setup, comm, 0, 9, folder.path(), whole); });
    run_ranks(setup.ranks,
              [&](const Comm& comm) { train(setup, comm, 5, 9, folder.path(), resumed); });
    for (size_t i = 0; i < whole.size(); ++i) expect_equal(resumed[i], whole[i]);
  }
}

TEST(ParameterUpdatesTest, LocalSgdCountsWhatARankHasDoneItself) {
  const BranchTraining setup{.ranks = 2,
                             .strategy = {.localsgd = true, .localsgd_configs = {.k_steps = 3}}};
  const TemporaryFolder folder;
  std::vector<Tensors> results(2);
  run_ranks(2, [&](const Comm& comm) { train(setup, comm, 0, 9, folder.path(), results); });
  EXPECT_TRUE(torch::equal(results[0].back(), torch::tensor({7., 7., 5., 5.}, torch::kDouble)))
      << results[0].back();
  EXPECT_TRUE(torch::equal(results[1].back(), torch::tensor({7., 7., 6., 6.}, torch::kDouble)))
      << results[1].back();
}

// Moments and their counts go to 0 together: the update after an average is that of a new Adam,
// not one that is several times too large.
TEST(ParameterUpdatesTest, AResetStateIsThatOfANewOptimizer) {
  const DistributedStrategy strategy{
      .localsgd = true, .localsgd_configs = {.k_steps = 3, .optimizer_state = "reset"}};
  run_ranks(2, [&](const Comm& comm) {
    Branches net, fresh;
    DistributedOptimizer optimizer(make_adam(net), strategy, comm);
    const auto step = [&](int64_t i) {
      return optimizer.minimize(
          small_batch(8, i * 2 + comm->rank()),
          [&](const Batch& micro_batch) { return net->loss(micro_batch, true, true); });
    };
    for (int64_t i = 0; i < 3; ++i) step(i);
    EXPECT_EQ(counts(optimizer), std::vector<double>(4, 0));
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < 4; ++i) fresh->parameters()[i].copy_(net->parameters()[i]);
    }
    torch::optim::Adam adam(fresh->parameters(), torch::optim::AdamOptions(0.01));
    fresh->loss(small_batch(8, 6 + comm->rank()), true, true).backward();
    adam.step();
    step(3);
    expect_close(copies(net->parameters()), copies(fresh->parameters()), 1e-5, 1e-6);
    optimizer.sync();
  });
}

}  // namespace
}  // namespace fleet
