// SPDX-License-Identifier: Apache-2.0
// fleet-bench NAME [--json [FILE]]: every figure that Fleet claims, as ratios from one run.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"
#include "fleet/core/version.h"

#include "bench/benches.h"
#include "bench/rank_processes.h"

namespace fleet::bench {
namespace {

struct Benchmark {
  const char* name;
  const char* what;
  int ranks;
  std::vector<Row> (*run)();
  int (*start)(int ranks, char** argv) = run_as_ranks;  // with several ranks
};

constexpr std::array kBenchmarks = {
    Benchmark{"allreduce", "fused against single all-reduces; overhead over LibTorch", 2,
              bench_allreduce},
    Benchmark{"any-model",
              "a half, a quarter, an eighth of the activations of many nets (FLEET_BENCH_NETS: "
              "only these)",
              1, bench_any_model},
    Benchmark{"data-parallel", "ResNet50 on two ranks with and without communication", 2,
              bench_data_parallel},
    Benchmark{"elastic", "kill -9 in an elastic job: to the next average, and until all are back",
              1, bench_elastic},
    Benchmark{"faults", "from the loss of a rank to the next update, beside the program's start", 1,
              bench_faults},
    Benchmark{"images", "JPEG files to batches, beside PyTorch with Pillow (FLEET_PYTHON names it)",
              1, bench_images},
    Benchmark{"kernels", "fused layers beside the same layers of LibTorch's ops", 1, bench_kernels},
    Benchmark{"local-sgd", "Fashion-MNIST on two hosts and a slow link (needs root)", 2,
              bench_local_sgd, run_on_two_hosts},
    Benchmark{"local-sgd-accuracy", "Fashion-MNIST by local SGD: what longer intervals cost", 2,
              bench_local_sgd_accuracy},
    Benchmark{"memory", "recompute: what a batch costs in time and memory, planned and by hand", 1,
              bench_memory},
    Benchmark{"memory-batch", "recompute: the largest batch in the memory of a small one", 1,
              bench_memory_batch},
    Benchmark{"models", "full updates of BERT and ResNet50, beside PyTorch (FLEET_PYTHON names it)",
              1, bench_models},
    Benchmark{"optim",
              "one update: each optimizer beside a triad and LibTorch's own (FLEET_BENCH_NETS, "
              "FLEET_BENCH_ROWS: only these)",
              1, bench_optim},
    Benchmark{"python",
              "unmodified models of Python within a memory budget (FLEET_PYTHON names it)", 1,
              bench_python},
    Benchmark{"snapshot", "how long a snapshot delays training, beside a plain copy", 1,
              bench_snapshot},
    Benchmark{"snapshot-large", "the same for a model of the size of BERT-large (14 GB)", 1,
              bench_snapshot_large},
    Benchmark{"sync-batch-norm", "a small ResNet18 on two ranks, batch norm over both or over one",
              2, bench_sync_batch_norm},
    Benchmark{"tape", "what recording ops for recompute costs, everything kept", 1, bench_tape},
};

std::string usage() {
  std::string text =
      "fleet-bench NAME [--json [FILE]]\n"
      "  --json: the rows into FILE, or without FILE on the standard output\n\n";
  for (const auto& item : kBenchmarks) text += format("  {:<20} {}\n", item.name, item.what);
  return text +
         "\nExamples:\n  fleet-bench allreduce\n  fleet-bench data-parallel --json result.json\n"
         "  fleet-bench optim --json | jq '.rows[] | {name, ratio}'\n";
}

const Benchmark& find(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& item : kBenchmarks) {
    if (name == item.name) return item;
    names.emplace_back(item.name);
  }
  throw UsageError("bench", format("there is no benchmark '{}'{}", name, did_you_mean(name, names)),
                   "run fleet-bench --help");
}

int body(int argc, char** argv) {
  std::string name;
  std::optional<std::string> json;  // a file; empty: the standard output
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-h") throw HelpRequested(usage());
    if (argument == "--version") throw HelpRequested(version_text("fleet-bench"));
    if (argument == "--json") {
      const bool has_file = i + 1 < argc && argv[i + 1][0] != '-';
      json = has_file ? argv[++i] : "";
    } else if (argument.starts_with('-')) {
      throw UsageError("bench", format("unknown flag '{}'", argument), "run fleet-bench --help");
    } else {
      name = argument;
    }
  }
  if (name.empty()) throw UsageError("bench", "no benchmark is named", usage());
  const auto& benchmark = find(name);
  if (benchmark.ranks > 1 && std::getenv("RANK") == nullptr)
    return benchmark.start(benchmark.ranks, argv);

  std::optional<JsonOutput> output;
  if (json) output.emplace(*json);
  init();
  const auto rows = benchmark.run();
  if (is_first_worker()) {
    print_table(benchmark.name, rows);
    if (output) output->write(rows);
  }
  shutdown();
  return 0;
}

}  // namespace
}  // namespace fleet::bench

int main(int argc, char** argv) { return fleet::run_main(fleet::bench::body, argc, argv); }
