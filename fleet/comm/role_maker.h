#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fleet {

/// Which rank this process is, among how many, and where they meet.
///
/// `from_environment` reads, in this order: torchrun's names (RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Paddle's (PADDLE_TRAINER_ID, PADDLE_TRAINERS_NUM,
/// PADDLE_TRAINER_ENDPOINTS, ...), those of a Slurm step, Open MPI's. None of them: one process.
/// fleetrun sets the first two kinds.
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
  bool store_is_hosted = false;  // by the launcher; otherwise rank 0 hosts it
  int restart_count = 0;
  bool is_elastic = false;             // FLEET_ELASTIC=1: ranks may be lost and come back
  int min_ranks = 1;                   // FLEET_MIN_RANKS: with fewer an elastic job does not go on
  std::string gpu = {};                // FLAGS_selected_gpus: the one that fleetrun --gpus gave it
  std::vector<std::string> endpoints;  // one per rank, when the launcher told
  std::string source = "no launcher: one process";

  using Lookup = std::function<std::optional<std::string>(const std::string&)>;
  static RoleMaker from_environment();
  static RoleMaker from_environment(const Lookup& variable);

  /// Throws an Error that lists everything that does not fit together.
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

/// The first host of Slurm's compressed list: "node[03-05,9],x" gives "node03".
std::string first_slurm_host(const std::string& list);

}  // namespace fleet
