// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fleet {

/// Which process hosts the rendezvous store.
enum class StoreHost { kRankZero, kFleetrun, kTorchrun };

/// Rank and world size of this process, and the address of the rendezvous.
///
/// `from_environment` reads, in this order: torchrun's names (RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Paddle's (PADDLE_TRAINER_ID, PADDLE_TRAINERS_NUM,
/// PADDLE_TRAINER_ENDPOINTS, ...), Open MPI's (OMPI_COMM_WORLD_...), Slurm's (of the step, else of
/// the job), and PMI's (PMI_RANK, PMI_SIZE). None of them: one process. Variables that imply
/// several ranks without saying which or how many are an Error: otherwise each rank would train on
/// its own. fleetrun sets the first two kinds, and FLEET_STORE and FLEET_JOB_KEY.
///
///   fleet::init(RoleMaker{.rank = 1, .world_size = 2, .master_address = "10.0.0.1", .master_port =
///   29500});
struct RoleMaker {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address;
  int master_port = 0;
  StoreHost store_host = StoreHost::kRankZero;
  std::string job_key = {};       // FLEET_JOB_KEY: needed to read or write the store
  bool spans_machines = false;    // ranks of other machines connect to this one
  bool knows_local_ranks = true;  // false: counted after the rendezvous
  int restart_count = 0;
  bool is_elastic = false;             // FLEET_ELASTIC=1: ranks may be lost and rejoin
  int min_ranks = 1;                   // FLEET_MIN_RANKS: with fewer an elastic job ends
  std::string gpu = {};                // FLAGS_selected_gpus: set by fleetrun --gpus
  std::vector<std::string> endpoints;  // one per rank, if the launcher gave them
  std::string source = "no launcher: one process";

  using Lookup = std::function<std::optional<std::string>(const std::string&)>;
  static RoleMaker from_environment();
  static RoleMaker from_environment(const Lookup& variable);

  /// Throws an Error that lists all contradictions.
  void check() const;
};

/// The guide's spelling of `RoleMaker::from_environment()`. `is_collective = false`, Paddle's
/// default, asks for parameter servers: there are none here, and `role()` says so.
///
///   fleet::init(fleet::PaddleCloudRoleMaker{.is_collective = true});
struct PaddleCloudRoleMaker {
  bool is_collective = false;

  RoleMaker role() const;
};

}  // namespace fleet
