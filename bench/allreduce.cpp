// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "fleet/comm/rendezvous/store/job_key.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/transport/backend.h"
#include "fleet/comm/world.h"
#include "fleet/core/text/format.h"

#include "bench/benches.h"

namespace fleet::bench {

// Many small tensors, a call each, against one fused span of the same bytes; and one buffer, large
// or small, against LibTorch's own process group called directly, on connections of its own.
std::vector<Row> bench_allreduce() {
  auto comm = world();
  const auto meet = [&] { comm->barrier("bench"); };
  std::vector<Row> rows;

  constexpr int kTensors = 160;
  constexpr int64_t kElements = 2048;  // 8 KB
  const auto flat = torch::ones({kTensors * kElements});
  const auto small = flat.view({kTensors, kElements}).unbind(0);
  const auto fused = alternate(15,
                               {[&] { comm->all_reduce(flat, comm::ReduceOp::kAvg, "fused"); },
                                [&] {
                                  for (const auto& tensor : small)
                                    comm->all_reduce(tensor, comm::ReduceOp::kAvg, "one by one");
                                }},
                               meet);
  rows.push_back({"160 tensors of 8 KB, fused", fused[0].median() * 1e3, "ms", "one by one",
                  fused[1].median() * 1e3, fused[1].median() / fused[0].median(),
                  fused[0].spread()});

  auto store = comm::Store::connect(std::getenv("MASTER_ADDR"),
                                    static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT"))),
                                    std::chrono::seconds(30), comm::job_key_from_environment());
  const auto engine = comm::make_backend(store.prefixed("bench/engine"), comm->rank(), comm->size(),
                                         comm->options());
  for (const int64_t megabytes : {1, 100}) {
    const auto buffer = torch::ones({megabytes * 1'000'000 / 4});
    const auto timings =
        alternate(megabytes == 1 ? 60 : 15,
                  {[&] { comm->all_reduce(buffer, comm::ReduceOp::kSum, "large"); },
                   [&] {
                     std::vector<torch::Tensor> tensors{buffer};
                     engine->allreduce(tensors)->wait();
                   }},
                  [&] {
                    buffer.fill_(1);
                    meet();
                  });
    rows.push_back({format("one buffer of {} MB", megabytes), timings[0].median() * 1e3, "ms",
                    "c10d's Gloo called directly", timings[1].median() * 1e3,
                    timings[1].median() / timings[0].median(),
                    timings[0].spread() + " | peer " + timings[1].spread()});
  }
  // Small ones, many in a row: what statistics, metrics and agreements cost.
  constexpr int kCalls = 100;
  for (const int64_t bytes : {8, 1024, 32 * 1024}) {
    const auto buffer = torch::zeros({bytes / 8}, torch::kDouble);
    const auto timings = alternate(15,
                                   {[&] {
                                      for (int call = 0; call < kCalls; ++call)
                                        comm->all_reduce(buffer, comm::ReduceOp::kSum, "small");
                                    },
                                    [&] {
                                      for (int call = 0; call < kCalls; ++call) {
                                        std::vector<torch::Tensor> tensors{buffer};
                                        engine->allreduce(tensors)->wait();
                                      }
                                    }},
                                   meet);
    rows.push_back(
        {format("one buffer of {} bytes", bytes), timings[0].median() * 1e6 / kCalls, "us",
         "c10d's Gloo called directly", timings[1].median() * 1e6 / kCalls,
         timings[1].median() / timings[0].median(),
         format("{} calls: {} | peer {}", kCalls, timings[0].spread(), timings[1].spread())});
  }
  return rows;
}

}  // namespace fleet::bench
