// SPDX-License-Identifier: Apache-2.0
// What tests/python/test_ranks.py does, in C++: the same net, data and strategy.
//
//   cpp_twin strategy.json parameters.bin

#include <fleet/fleet.h>

#include <fstream>
#include <memory>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn.h>

namespace {

namespace nn = torch::nn;

constexpr int64_t kSamples = 24, kUpdates = 4;

int body(int /*argc*/, char** argv) {
  fleet::init();
  torch::manual_seed(0);
  const auto x = at::randn({kSamples, 16}, at::make_generator<at::CPUGeneratorImpl>(1));
  const auto y =
      at::randint(0, 4, {kSamples}, at::make_generator<at::CPUGeneratorImpl>(2), torch::kLong);
  nn::Sequential model;  // layer by layer: the order in which they draw their weights
  model->push_back(nn::Linear(16, 32));
  model->push_back(nn::LayerNorm(nn::LayerNormOptions({32})));
  model->push_back(nn::Tanh());
  model->push_back(nn::Linear(32, 4));
  const auto strategy = fleet::DistributedStrategy::load(argv[1]);
  std::unique_ptr<fleet::optim::Optimizer> inner;
  if (strategy.lamb) {
    inner = std::make_unique<fleet::optim::Adam>(model, fleet::optim::AdamOptions{.lr = 0.1});
  } else {
    inner =
        std::make_unique<fleet::optim::Momentum>(model, fleet::optim::MomentumOptions{.lr = 0.1});
  }
  auto optimizer = fleet::distributed_optimizer(std::move(inner), strategy);
  const int64_t rank = fleet::worker_index(), ranks = fleet::worker_num();
  const int64_t begin = rank * kSamples / ranks, end = (rank + 1) * kSamples / ranks;
  const fleet::Batch batch{x.slice(0, begin, end), y.slice(0, begin, end)};
  for (int64_t update = 0; update < kUpdates; ++update) {
    optimizer.minimize(batch, [&](const fleet::Batch& micro_batch) {
      return nn::functional::cross_entropy(model->forward(micro_batch.data), micro_batch.target);
    });
  }
  optimizer.end_epoch();
  if (fleet::is_first_worker()) {
    std::ofstream file(argv[2], std::ios::binary);
    for (const auto& parameter : model->parameters()) {
      const auto values = parameter.detach().contiguous();
      file.write(static_cast<const char*>(values.const_data_ptr()),
                 static_cast<std::streamsize>(values.nbytes()));
    }
  }
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
