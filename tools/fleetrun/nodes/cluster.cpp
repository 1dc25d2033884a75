// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/nodes/cluster.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "fleet/core/process/process_setup.h"
#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

int Cluster::world_size() const {
  size_t ranks = 0;
  for (const auto& node : nodes) ranks += node.endpoints.size();
  return static_cast<int>(ranks);
}

int Cluster::first_rank() const {
  size_t ranks = 0;
  for (int node = 0; node < node_rank; ++node)
    ranks += nodes[static_cast<size_t>(node)].endpoints.size();
  return static_cast<int>(ranks);
}

int threads_per_rank(int local_ranks) { return std::max(1, available_cores() / local_ranks); }

std::string shared_cores(int local_ranks, int cores) {
  if (local_ranks > cores)
    return format("{} ranks share {} core{}", local_ranks, cores, cores == 1 ? "" : "s");
  return format("{} of {} cores each", cores / local_ranks, cores);
}

Environment worker_environment(const Cluster& cluster, const Options& options,
                               const Attempt& attempt, int local_rank) {
  const auto& endpoints = cluster.own().endpoints;
  const auto text = [](int number) { return format("{}", number); };
  const auto local_size = static_cast<int>(endpoints.size());
  const auto rank = text(cluster.first_rank() + local_rank);
  const auto world = text(cluster.world_size());
  std::vector<std::string> all;
  for (const auto& node : cluster.nodes)
    all.insert(all.end(), node.endpoints.begin(), node.endpoints.end());

  const auto& rank_zero = all.front();
  const auto colon = rank_zero.rfind(':');

  Environment environment = {
      {"RANK", rank},
      {"WORLD_SIZE", world},
      {"LOCAL_RANK", text(local_rank)},
      {"LOCAL_WORLD_SIZE", text(local_size)},
      {"GROUP_RANK", text(cluster.node_rank)},
      {"GROUP_WORLD_SIZE", text(static_cast<int>(cluster.nodes.size()))},
      // Fleet's ranks use the launcher's store. In a program that uses torch.distributed itself,
      // rank 0 hosts one at its endpoint.
      {"FLEET_STORE", format("{}:{}", cluster.master.host, cluster.master.port)},
      {"FLEET_JOB_KEY", cluster.job_key},
      {"MASTER_ADDR", rank_zero.substr(0, colon)},
      {"MASTER_PORT", rank_zero.substr(colon + 1)},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_RESTART_COUNT", text(attempt.number)},
      {"TORCHELASTIC_MAX_RESTARTS", text(attempt.max_restarts)},
      {"PADDLE_TRAINER_ID", rank},
      {"PADDLE_TRAINERS_NUM", world},
      {"PADDLE_CURRENT_ENDPOINT", endpoints[static_cast<size_t>(local_rank)]},
      {"PADDLE_TRAINER_ENDPOINTS", to_text(all)},
      {"PADDLE_RANK_IN_NODE", text(local_rank)},
      {"FLEET_LOG_DIR", attempt.log_dir},
  };
  if (options.elastic) {
    environment.emplace_back("FLEET_ELASTIC", "1");
    environment.emplace_back("FLEET_MIN_RANKS", text(options.min_ranks));
  }
  if (!options.gpus.empty()) {
    environment.emplace_back("FLAGS_selected_gpus", options.gpus[static_cast<size_t>(local_rank)]);
    // All GPUs of the node, so that device LOCAL_RANK is the rank's, as with torchrun.
    environment.emplace_back("CUDA_VISIBLE_DEVICES", to_text(options.gpus));
  }
  if (std::getenv("OMP_NUM_THREADS") == nullptr)
    environment.emplace_back("OMP_NUM_THREADS", text(threads_per_rank(local_size)));
  if (!is_wait_policy_chosen()) {
    environment.emplace_back("OMP_WAIT_POLICY", "passive");
    environment.emplace_back("GOMP_SPINCOUNT", kSpinCount);
  }
  if (options.peer_timeout_s > 0)
    environment.emplace_back("FLEET_TIMEOUT_S", to_text(options.peer_timeout_s));
  const bool on_terminal = local_rank == 0 && ::isatty(STDOUT_FILENO) == 1;
  environment.emplace_back("FLEET_TTY", on_terminal ? "1" : "");
  environment.emplace_back("FLEET_COLUMNS", on_terminal ? text(terminal_columns()) : "");
  return environment;
}

Environment shown_environment(const Environment& environment) {
  Environment rows;
  for (const auto* name : {"PADDLE_CURRENT_ENDPOINT", "PADDLE_TRAINERS_NUM",
                           "PADDLE_TRAINER_ENDPOINTS", "FLAGS_selected_gpus", "PADDLE_TRAINER_ID"})
    for (const auto& variable : environment)
      if (variable.first == name) rows.push_back(variable);
  return rows;
}

}  // namespace fleet::launch
