#include "fleet/parallel/data_parallel.h"

#include <torch/nn/functional/loss.h>

#include "fleet/applications/resnet.h"
#include "fleet/comm/world.h"
#include "fleet/core/format.h"

#include "bench/benches.h"

namespace fleet::bench {

// ResNet50, channels-last, batch 4 per rank, forward and backward; both ranks always busy, ways
// taken in turn: gradients reduced while backward runs; landing in the arena only; reduced after
// backward; one flat all-reduce.
std::vector<Row> bench_data_parallel() {
  auto comm = world();
  torch::manual_seed(1);
  applications::Resnet net(applications::ResnetOptions{});
  for (auto& parameter : net->parameters()) {
    if (parameter.dim() == 4) {
      parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
    }
  }
  const auto x = torch::randn({4, 3, 224, 224}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto target = torch::randint(1000, {4});
  ParameterArena arena(net);
  DataParallel parallel(arena, comm, {});
  parallel.broadcast(net);

  const auto backward = [&] {
    const auto loss = torch::nn::functional::cross_entropy(net(x), target);
    (loss / comm->size()).backward();
  };
  double exposed = 0;
  int overlapped = 0;
  const auto& flat = arena.groups()[0].gradients;
  const auto timings =
      alternate(15,
                {[&] {
                   arena.begin_window();
                   parallel.listen();
                   backward();
                   parallel.wait();
                   exposed += parallel.exposed_seconds();
                   ++overlapped;
                 },
                 [&] {
                   arena.begin_window();
                   backward();
                   arena.end_window();
                 },
                 [&] {
                   arena.begin_window();
                   backward();
                   arena.end_window();
                   comm->all_reduce(flat, comm::ReduceOp::kSum, "all gradients, after backward");
                 },
                 [&] { comm->all_reduce(flat, comm::ReduceOp::kSum, "flat"); }},
                [&] { comm->barrier("bench"); });
  const double with = timings[0].median() * 1e3;
  const double without = timings[1].median() * 1e3;
  const double after = timings[2].median() * 1e3;
  const double flat_ms = timings[3].median() * 1e3;
  const double added = with - without;
  exposed = exposed / overlapped * 1e3;
  return {
      {"ResNet50 step, reduced while backward runs", with, "ms", "same work, no communication",
       without, without / with, timings[0].spread() + " | peer " + timings[1].spread()},
      {"added by communication", added, "ms", "DistributedDataParallel's 78 ms", 78, 78 / added,
       ""},
      {"added by communication, best steps", (timings[0].best() - timings[1].best()) * 1e3, "ms",
       "one flat all-reduce, best", timings[3].best() * 1e3,
       timings[3].best() / std::max(1e-9, timings[0].best() - timings[1].best()), ""},
      {"added when reduced after backward", after - without, "ms", "reduced while backward runs",
       added, added / (after - without), timings[2].spread()},
      {"waited for after backward", exposed, "ms", "one flat all-reduce", flat_ms,
       flat_ms / exposed,
       format("{:.0f} % of the flat all-reduce's time hidden", 100 * (1 - exposed / flat_ms))},
  };
}

}  // namespace fleet::bench
