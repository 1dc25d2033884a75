// SPDX-License-Identifier: Apache-2.0
// Fits a small net to a sum of squares; alone, or with several ranks through fleetrun.
#include <fleet/fleet.h>

#include <torch/nn.h>

namespace {

int body(int, char**) {
  fleet::init();
  torch::manual_seed(1 + fleet::worker_index());  // every rank its own samples
  torch::nn::Sequential net(torch::nn::Linear(4, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  auto optimizer = fleet::distributed_optimizer(fleet::optim::Adam(net, {.lr = 0.01}));
  double first = 0;
  double last = 0;
  for (int step = 0; step < 200; ++step) {
    const auto x = torch::rand({64, 4});
    const auto y = x.square().sum(1, /*keepdim=*/true);
    last = optimizer.minimize([&] { return (net->forward(x) - y).square().mean(); }).loss;
    if (step == 0) first = last;
  }
  fleet::log::info("consumer", fleet::format("ranks {}: loss {:.4f} -> {:.4f}", fleet::worker_num(),
                                             first, last));
  fleet::shutdown();
  return last < first / 10 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
