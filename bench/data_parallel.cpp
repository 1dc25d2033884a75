// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/data_parallel.h"

#include <cstdlib>

#include <torch/nn/functional/loss.h>

#include "fleet/applications/resnet.h"
#include "fleet/comm/world.h"
#include "fleet/core/text/format.h"

#include "bench/benches.h"

namespace fleet::bench {

namespace {

// One way to reduce the gradients, on a model of its own.
struct Trainee {
  applications::Resnet net{applications::ResnetOptions{}};
  std::unique_ptr<ParameterArena> arena;
  std::unique_ptr<DataParallel> parallel;
  double exposed_s = 0;
  int steps = 0;

  Trainee(const std::shared_ptr<comm::Communicator>& comm, bool share_memory) {
    for (auto& parameter : net->parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
      }
    }
    ::setenv("FLEET_SHARED_MEMORY", share_memory ? "1" : "0", 1);
    arena = std::make_unique<ParameterArena>(net);
    parallel = std::make_unique<DataParallel>(*arena, comm, DataParallelOptions{});
    parallel->broadcast(net);
  }

  void step(const torch::Tensor& x, const torch::Tensor& target, int ranks, bool reduce) {
    arena->begin_window();
    if (reduce) parallel->arm();
    (torch::nn::functional::cross_entropy(net(x), target) / ranks).backward();
    if (!reduce) return arena->end_window();
    parallel->wait();
    exposed_s += parallel->exposed_seconds();
    ++steps;
  }

  double exposed_ms() const { return exposed_s / steps * 1e3; }
};

}  // namespace

// ResNet50, channels-last, batch 4 per rank, forward and backward, both ranks always busy; ways
// taken in turn: without communication, reduced in shared memory, reduced through sockets, and one
// flat all-reduce alone.
std::vector<Row> bench_data_parallel() {
  auto comm = world();
  torch::manual_seed(1);
  Trainee shared(comm, true);
  Trainee sockets(comm, false);
  const int ranks = comm->size();
  const auto x = torch::randn({4, 3, 224, 224}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto target = torch::randint(1000, {4});
  const auto& flat = sockets.arena->groups()[0].gradients;
  const auto timings =
      alternate(15,
                {[&] { shared.step(x, target, ranks, /*reduce=*/false); },
                 [&] { shared.step(x, target, ranks, /*reduce=*/true); },
                 [&] { sockets.step(x, target, ranks, /*reduce=*/true); },
                 [&] { comm->all_reduce(flat, comm::ReduceOp::kSum, "all gradients at once"); }},
                [&] { comm->barrier("bench"); });
  const auto ms = [&](size_t way) { return timings[way].median() * 1e3; };
  // Pairs of neighbouring steps, so that slow spells of the machine cancel out.
  const auto added = [&](size_t way) {
    Timing differences;
    for (size_t i = 0; i < timings[way].seconds.size(); ++i) {
      differences.seconds.push_back(timings[way].seconds[i] - timings[0].seconds[i]);
    }
    return differences;
  };
  const auto by_shared = added(1);
  const auto by_sockets = added(2);
  const auto ratio = [](double peer, double own) { return own > 0 ? peer / own : 0; };
  return {
      {"ResNet50 step, shared memory", ms(1), "ms", "same work, no communication", ms(0),
       ms(0) / ms(1), timings[1].spread() + " | peer " + timings[0].spread()},
      {"ResNet50 step, sockets", ms(2), "ms", "same work, no communication", ms(0), ms(0) / ms(2),
       timings[2].spread()},
      {"added by communication, shared memory", by_shared.median() * 1e3, "ms", "sockets",
       by_sockets.median() * 1e3, ratio(by_sockets.median(), by_shared.median()),
       by_shared.spread()},
      {"added by communication, shared memory", by_shared.median() * 1e3, "ms",
       "one flat all-reduce", ms(3), ratio(timings[3].median(), by_shared.median()),
       timings[3].spread()},
      {"waited for after backward, shared memory", shared.exposed_ms(), "ms", "one flat all-reduce",
       ms(3), ratio(ms(3), shared.exposed_ms()),
       format("{:.0f} % hidden behind backward", 100 * (1 - shared.exposed_ms() / ms(3)))},
      {"waited for after backward, sockets", sockets.exposed_ms(), "ms", "one flat all-reduce",
       ms(3), ratio(ms(3), sockets.exposed_ms()),
       format("{:.0f} % hidden behind backward", 100 * (1 - sockets.exposed_ms() / ms(3)))},
  };
}

}  // namespace fleet::bench
