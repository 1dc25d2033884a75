// SPDX-License-Identifier: Apache-2.0
// Snapshots of trainings by optimizers of LibTorch.
#include <algorithm>
#include <filesystem>
#include <mutex>

#include "fleet/optim/torch_optimizer.h"
#include "fleet/snapshot/snapshots.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/says.h"
#include "tests/train/torch_optimizers.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

/// The same without `save` and `load`.
class Forgetful : public Sign {
 public:
  using Sign::Sign;
  void save(torch::serialize::OutputArchive&) const override {}
};

class TorchSnapshotTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBefore = 3;

  // Steps [begin, end) of a training whose branch pauses; resumes from `folder` where begin > 0.
  static void train(const Comm& comm, const MakeTorch& make, const DistributedStrategy& strategy,
                    int64_t begin, int64_t end, const std::filesystem::path& folder,
                    std::vector<Tensors>& results) {
    std::unique_lock lock(seed_);
    Branched net;
    lock.unlock();
    const auto parameters = net->parameters();
    const auto inner = make({OptimizerParamGroup({parameters[0], parameters[1]}),
                             OptimizerParamGroup({parameters[2], parameters[3]})});
    DistributedOptimizer optimizer(std::make_unique<optim::TorchOptimizer>(net, inner), strategy,
                                   comm);
    if (begin > 0) {
      EXPECT_EQ(load_snapshot(folder, optimizer), begin);
    }
    for (int64_t step = begin; step < end; ++step) {
      if (step == 2) optimizer.set_lr(optimizer.lr() / 2);
      optimizer.minimize(small_batch(8, step * comm->size() + comm->rank()),
                         [&](const Batch& b) { return net->loss(b, has_branch(step)); });
      if (begin == 0 && step + 1 == kBefore) save_snapshot(folder, optimizer);
    }
    EXPECT_GT(optimizer.lr(), 0);
    auto own = copies(net->parameters());
    own.push_back(torch::tensor(optimizer.lr(), torch::kDouble));
    if (const auto* sign = dynamic_cast<Sign*>(inner.get())) {
      own.push_back(torch::tensor(sign->steps));
    }
    results[static_cast<size_t>(comm->rank())] = own;
    optimizer.sync();
  }

  static void expect_resumes(int ranks, const MakeTorch& make, DistributedStrategy strategy) {
    strategy.find_unused_parameters = true;
    const TemporaryFolder folder;
    std::vector<Tensors> whole(static_cast<size_t>(ranks)), resumed(whole.size());
    run_ranks(ranks,
              [&](const Comm& comm) { train(comm, make, strategy, 0, 8, folder.path(), whole); });
    run_ranks(ranks, [&](const Comm& comm) {
      train(comm, make, strategy, kBefore, 8, folder.path(), resumed);
    });
    for (size_t i = 0; i < whole.size(); ++i) expect_equal(resumed[i], whole[i]);
  }

  static inline std::mutex seed_;
};

TEST_F(TorchSnapshotTest, ResumesBitForBit) {
  DistributedStrategy bf16{.amp = true};
  bf16.amp_configs.use_pure_bf16 = true;
  const DistributedStrategy local{.localsgd = true, .localsgd_configs = {.k_steps = 2}};
  for (const auto& [name, make] : kinds_and_own()) {
    SCOPED_TRACE(name);
    expect_resumes(1, make, {});
    expect_resumes(2, make, {});
    expect_resumes(1, make, bf16);
    expect_resumes(2, make, local);  // in the middle of a window, ranks differ
  }
}

TEST_F(TorchSnapshotTest, ASchedulerOfTorchIsBroughtUpToTheUpdatesDone) {
  const TemporaryFolder folder;
  const auto train = [&](bool resumes, std::vector<double>& rates) {
    auto net = small_net();
    torch::optim::RMSprop rmsprop(net->parameters(), torch::optim::RMSpropOptions(0.1));
    auto optimizer = distributed_optimizer(net, rmsprop);
    torch::optim::StepLR scheduler(rmsprop, 2, 0.5);
    if (resumes) {
      load_snapshot(folder.path(), optimizer);
      const double lr = optimizer.lr();
      for (int64_t update = 0; update < optimizer.updates(); ++update) scheduler.step();
      optimizer.set_lr(lr);
    }
    for (int64_t step = optimizer.updates(); step < 7; ++step) {
      rates.push_back(
          optimizer
              .minimize(small_batch(8, step),
                        [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); })
              .lr);
      scheduler.step();
      if (!resumes && step + 1 == kBefore) save_snapshot(folder.path(), optimizer);
    }
  };
  std::vector<double> whole, resumed;
  train(false, whole);
  train(true, resumed);
  EXPECT_EQ(resumed, std::vector<double>(whole.begin() + kBefore, whole.end()));
}

TEST_F(TorchSnapshotTest, OfAnotherOptimizerIsRefused) {
  const TemporaryFolder folder;
  auto net = small_net();
  {
    auto optimizer = distributed_optimizer(net, torch::optim::RMSprop(net->parameters()));
    save_snapshot(folder.path(), optimizer);
  }
  const auto refused = [&](DistributedOptimizer optimizer) {
    return error_message_of([&] { load_snapshot(folder.path(), optimizer); });
  };
  EXPECT_TRUE(says(refused(distributed_optimizer(net, torch::optim::Adagrad(net->parameters()))),
                   "was written with torch::optim::RMSprop, and this training has "
                   "torch::optim::Adagrad"));
  EXPECT_TRUE(says(refused(distributed_optimizer(optim::SGD(net))),
                   "was written with torch::optim::RMSprop, and this training has SGD"));
}

TEST_F(TorchSnapshotTest, AnOptimizerThatSavesNothingIsRefusedBeforeTheFirstUpdate) {
  const TemporaryFolder folder;
  auto net = small_net();
  auto optimizer =
      distributed_optimizer(net, Forgetful(std::vector<OptimizerParamGroup>{net->parameters()}));
  EXPECT_TRUE(says(error_message_of([&] {
                     Snapshots snapshots(optimizer, {.snapshot_dir = folder.path().string()});
                   }),
                   "Forgetful::save() writes nothing, so that a snapshot would lose its state",
                   "override save() and load()"));
}

}  // namespace
}  // namespace fleet
