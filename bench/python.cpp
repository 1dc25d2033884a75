// SPDX-License-Identifier: Apache-2.0
// Unmodified Python models within a memory budget, beside what else saves memory there.
#include <cstdlib>
#include <sstream>
#include <string>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "bench/benches.h"
#include "bench/python_peer.h"

namespace fleet::bench {

std::vector<Row> bench_python() {
  const auto setting = [](const char* name, const char* otherwise) {
    const char* const value = std::getenv(name);
    return std::string(value ? value : otherwise);
  };
  PythonPeer python(FLEET_PYTHON_ROWS,
                    {std::to_string(at::get_num_threads()), setting("FLEET_BENCH_SIZE", "full"),
                     setting("FLEET_BENCH_BATCH", "8")});
  std::vector<Row> rows;
  if (!python.is_available()) {
    rows.push_back({.name = "unmodified models of Python",
                    .unit = "samples/s",
                    .peer = "none: FLEET_PYTHON names no Python with fleet, transformers and "
                            "torchvision"});
    return rows;
  }
  std::istringstream nets(setting("FLEET_BENCH_NETS", "idle,bert-base,gpt2,vit,resnet50"));
  for (std::string model; std::getline(nets, model, ',');) {
    for (const auto& row : nlohmann::json::parse(python.ask(model))) {
      const double ours = row[1], theirs = row[3];
      rows.push_back({.name = row[0],
                      .value = ours,
                      .unit = "samples/s",
                      .peer = row[2],
                      .peer_value = theirs,
                      .ratio = theirs > 0 ? ours / theirs : 0,
                      .note = row[4]});
    }
  }
  return rows;
}

}  // namespace fleet::bench
