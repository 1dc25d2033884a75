// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/role_maker.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "fleet/comm/rendezvous/host_list.h"
#include "fleet/comm/rendezvous/network_address.h"
#include "fleet/comm/rendezvous/store/job_key.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"
#include "fleet/core/xx_hash64.h"

namespace fleet {
namespace {

/// Reads variables and collects all problems, to report them at once.
class Environment {
 public:
  explicit Environment(const RoleMaker::Lookup& variable) : variable_(variable) {}

  std::optional<std::string> text(const std::string& name) const {
    auto value = variable_(name);
    return value && !value->empty() ? value : std::nullopt;
  }

  std::optional<int> number(const std::string& name) {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int result = 0;
    const auto* const end = value->data() + value->size();
    const auto parsed = std::from_chars(value->data(), end, result);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      problems_.push_back(format("{}='{}' is not a whole number", name, printable(*value)));
      return std::nullopt;
    }
    return result;
  }

  /// The value of the first name, or of the second; both with different values is a contradiction.
  std::optional<int> agreed(const std::string& first, const std::string& second) {
    const auto a = number(first);
    const auto b = number(second);
    if (a && b && *a != *b) {
      problems_.push_back(format("{}={} and {}={} contradict each other", first, *a, second, *b));
    }
    return a ? a : b;
  }

  int required(const std::string& name, const std::optional<int>& value,
               const std::string& because) {
    if (!value && !text(name))
      problems_.push_back(format("{} is not set, though {} is", name, because));
    return value.value_or(0);
  }

  void problem(std::string text) { problems_.push_back(std::move(text)); }

  void raise() const {
    if (problems_.empty()) return;
    throw UsageError::all("comm",
                          "the environment does not say clearly which rank this is:", problems_,
                          "start the program with fleetrun, or unset what a launcher has left "
                          "behind");
  }

 private:
  const RoleMaker::Lookup& variable_;
  std::vector<std::string> problems_;
};

std::vector<std::string> split(const std::string& list, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= list.size()) {
    const auto end = std::min(list.find(separator, begin), list.size());
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// The same port on all ranks of a job, if none is given.
int port_from(const std::string& job) {
  return 20000 + static_cast<int>(XxHash64::of(job) % 10000);
}

void read_master(Environment& environment, RoleMaker& role) {
  if (const auto address = environment.text("MASTER_ADDR")) role.master_address = *address;
  if (const auto port = environment.number("MASTER_PORT")) role.master_port = *port;
}

// "host:port"
void read_place(Environment& environment, const std::string& name, const std::string& place,
                RoleMaker& role) {
  const auto colon = place.rfind(':');
  const auto* const end = place.data() + place.size();
  if (colon != std::string::npos && colon > 0) {
    const auto parsed = std::from_chars(place.data() + colon + 1, end, role.master_port);
    role.master_address = place.substr(0, colon);
    if (parsed.ec == std::errc() && parsed.ptr == end) return;
  }
  environment.problem(format("{}: '{}' is not host:port", name, printable(place)));
}

// If one of the two numbers is missing, local ranks are counted after the rendezvous.
void read_local_ranks(RoleMaker& role, const std::optional<int>& rank,
                      const std::optional<int>& size) {
  role.knows_local_ranks = rank && size;
  role.local_rank = rank.value_or(0);
  role.local_world_size = size.value_or(role.local_rank + 1);
}

// RANK and WORLD_SIZE that a shell or a notebook has left behind would make each task of srun or
// mpirun a training of its own. A launcher that the tasks have started counts its ranks itself.
void check_against_launcher(Environment& environment, const char* world_name, int world) {
  for (const auto* name : {"FLEET_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                           "TORCHELASTIC_USE_AGENT_STORE"}) {
    if (environment.text(name)) return;
  }
  for (const auto* name : {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const auto tasks = environment.number(name);
    if (!tasks || *tasks < 2 || *tasks == world) continue;
    environment.problem(
        format("{}={} and {}={} contradict each other: unset RANK and WORLD_SIZE (or Paddle's), "
               "if they are left over, or {}, if it does not count the ranks",
               world_name, world, name, *tasks, name));
  }
}

bool read_torchrun_or_paddle(Environment& environment, RoleMaker& role) {
  const auto rank = environment.agreed("RANK", "PADDLE_TRAINER_ID");
  const auto world = environment.agreed("WORLD_SIZE", "PADDLE_TRAINERS_NUM");
  if (!rank && !world) return false;
  const bool torchrun = environment.text("RANK") || environment.text("WORLD_SIZE");
  const char* rank_name = torchrun ? "RANK" : "PADDLE_TRAINER_ID";
  const char* world_name = torchrun ? "WORLD_SIZE" : "PADDLE_TRAINERS_NUM";
  role.source = torchrun ? "RANK, WORLD_SIZE" : "PADDLE_TRAINER_ID, PADDLE_TRAINERS_NUM";
  role.rank = environment.required(rank_name, rank, world_name);
  role.world_size = environment.required(world_name, world, rank_name);
  if (world) check_against_launcher(environment, world_name, *world);
  if (const auto list = environment.text("PADDLE_TRAINER_ENDPOINTS")) {
    role.endpoints = split(*list, ',');
    if (world && static_cast<int>(role.endpoints.size()) != *world) {
      environment.problem(format("PADDLE_TRAINER_ENDPOINTS names {} ranks, {} is {}",
                                 role.endpoints.size(), world_name, *world));
    }
  }
  read_local_ranks(role, environment.agreed("LOCAL_RANK", "PADDLE_RANK_IN_NODE"),
                   environment.number("LOCAL_WORLD_SIZE"));
  read_master(environment, role);
  const bool first_is_master = role.master_address.empty();
  for (size_t i = 0; i < role.endpoints.size(); ++i) {
    RoleMaker other;
    read_place(environment, "PADDLE_TRAINER_ENDPOINTS", role.endpoints[i],
               i == 0 && first_is_master ? role : other);
  }
  if (const auto place = environment.text("FLEET_STORE")) {
    read_place(environment, "FLEET_STORE", *place, role);
    role.store_host = StoreHost::kFleetrun;
  } else {
    const auto agent = environment.text("TORCHELASTIC_USE_AGENT_STORE");
    const bool is_hosted = agent && (*agent == "True" || *agent == "1" || *agent == "true");
    if (is_hosted) role.store_host = StoreHost::kTorchrun;
  }
  role.restart_count = environment.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  role.is_elastic = environment.number("FLEET_ELASTIC").value_or(0) != 0;
  role.min_ranks = environment.number("FLEET_MIN_RANKS").value_or(1);
  role.gpu = environment.text("FLAGS_selected_gpus").value_or("");
  return true;
}

// From the local and the global world size, for launchers that name no master.
void derive_master(Environment& environment, RoleMaker& role, const std::string& launcher,
                   const std::string& job, const std::string& fix) {
  read_master(environment, role);
  const bool is_one_machine = role.knows_local_ranks && role.world_size == role.local_world_size;
  if (role.master_address.empty() && is_one_machine) role.master_address = "127.0.0.1";
  if (role.master_address.empty()) {
    environment.problem(format("{} does not give the address of rank 0: {}", launcher, fix));
  } else if (role.master_port == 0) {
    role.master_port = port_from(job);
  }
}

// False: none of the two is set.
bool read_rank(Environment& environment, RoleMaker& role, const char* rank_name,
               const char* world_name) {
  const auto rank = environment.number(rank_name);
  const auto world = environment.number(world_name);
  if (!rank && !world) return false;
  role.source = format("{}, {}", rank_name, world_name);
  role.rank = environment.required(rank_name, rank, world_name);
  role.world_size = environment.required(world_name, world, rank_name);
  return true;
}

// Before Slurm's: under mpirun in a Slurm job, Slurm's variables are those of its daemons, one for
// each node.
bool read_open_mpi(Environment& environment, RoleMaker& role) {
  if (!read_rank(environment, role, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) return false;
  read_local_ranks(role, environment.number("OMPI_COMM_WORLD_LOCAL_RANK"),
                   environment.number("OMPI_COMM_WORLD_LOCAL_SIZE"));
  derive_master(environment, role, "Open MPI", environment.text("PMIX_NAMESPACE").value_or("ompi"),
                "pass -x MASTER_ADDR=... -x MASTER_PORT=... to mpirun");
  return true;
}

// Slurm's variables: of the step, else of the job.
class SlurmNames {
 public:
  explicit SlurmNames(Environment& environment) : environment_(environment) {}

  std::optional<int> tasks() const {
    for (const auto* name : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}) {
      if (const auto found = environment_.number(name)) return found;
    }
    return std::nullopt;
  }
  std::optional<std::string> first_of(std::initializer_list<const char*> names) const {
    for (const auto* name : names) {
      if (auto found = environment_.text(name)) return found;
    }
    return std::nullopt;
  }
  /// Started by srun, once per task.
  bool is_in_step() const {
    return first_of({"SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST",
                     "SLURM_SRUN_COMM_PORT"})
        .has_value();
  }
  /// Tasks of this node, by its index among the nodes.
  std::optional<int> tasks_here() const {
    const auto list = first_of({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
    if (!list) return std::nullopt;
    const auto counts = comm::expand_task_counts(*list);
    const auto node = environment_.number("SLURM_NODEID");
    if (std::equal(counts.begin() + 1, counts.end(), counts.begin())) return counts.front();
    if (!node || *node < 0 || static_cast<size_t>(*node) >= counts.size()) return std::nullopt;
    return counts[static_cast<size_t>(*node)];
  }
  std::string first_node() const {
    const auto list = first_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
    return list ? comm::expand_host_list(*list).front() : "";
  }

 private:
  Environment& environment_;
};

// A batch script sees SLURM_PROCID=0 too. A program started there directly must not wait for ranks
// that are never started, and one without the step's variables must not train alone.
bool read_slurm(Environment& environment, RoleMaker& role) {
  const SlurmNames slurm(environment);
  const auto rank = environment.number("SLURM_PROCID");
  const auto tasks = slurm.tasks();
  if (!rank && !environment.text("SLURM_STEP_NUM_TASKS")) return false;
  role.source = "SLURM_PROCID, SLURM_STEP_NUM_TASKS";
  role.rank = environment.required("SLURM_PROCID", rank, "SLURM_STEP_NUM_TASKS");
  role.world_size = tasks.value_or(1);
  if (!tasks && role.rank > 0) {
    environment.problem(
        format("SLURM_PROCID={} implies several ranks, and neither "
               "SLURM_STEP_NUM_TASKS nor SLURM_NTASKS says how many",
               role.rank));
    return true;
  }
  if (!slurm.is_in_step() && role.rank == 0) {
    if (role.world_size == 1) {
      role.source = "Slurm, one task";
      return true;
    }
    environment.problem(
        format("the job has {} tasks (SLURM_NTASKS), and this process was not started by srun, so "
               "it would train alone: start it with srun, or say RANK=0 WORLD_SIZE=1 for one "
               "process",
               role.world_size));
    return true;
  }
  if (!environment.text("SLURM_STEP_NUM_TASKS")) role.source = "SLURM_PROCID, SLURM_NTASKS";
  read_local_ranks(role, environment.number("SLURM_LOCALID"), slurm.tasks_here());
  role.local_world_size = std::max(role.local_world_size, role.local_rank + 1);
  if (!environment.text("MASTER_ADDR")) role.master_address = slurm.first_node();
  derive_master(environment, role, "Slurm",
                environment.text("SLURM_JOB_ID").value_or("") + "." +
                    slurm.first_of({"SLURM_STEP_ID", "SLURM_STEPID"}).value_or(""),
                "neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set; set MASTER_ADDR to the "
                "host of rank 0");
  return true;
}

// MPICH, Intel MPI and others with Hydra.
bool read_pmi(Environment& environment, RoleMaker& role) {
  if (!read_rank(environment, role, "PMI_RANK", "PMI_SIZE")) {
    if (const auto alone = environment.text("PMIX_RANK")) {
      environment.problem(
          format("PMIX_RANK={} implies several ranks, and nothing gives "
                 "their number: set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                 printable(*alone)));
    }
    return false;
  }
  read_local_ranks(role, environment.number("MPI_LOCALRANKID"),
                   environment.number("MPI_LOCALNRANKS"));
  derive_master(environment, role, "MPI", environment.text("PMI_ID").value_or("pmi"),
                "pass -env MASTER_ADDR ... -env MASTER_PORT ... to mpiexec");
  return true;
}

// Whether ranks of other machines connect to this one: if the number of local ranks is unknown, a
// master that is not a loopback address decides.
bool ranks_span_machines(const Environment& environment, const RoleMaker& role) {
  const bool is_loopback = comm::is_loopback_name(role.master_address);
  if (is_loopback && role.store_host != StoreHost::kRankZero)
    return false;  // all ranks have reached it
  if (role.knows_local_ranks) return role.world_size > role.local_world_size;
  return !is_loopback || environment.text("KUBERNETES_SERVICE_HOST").has_value();
}

}  // namespace

RoleMaker RoleMaker::from_environment() {
  return from_environment([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

RoleMaker RoleMaker::from_environment(const Lookup& variable) {
  Environment environment(variable);
  RoleMaker role;
  const bool found = read_torchrun_or_paddle(environment, role) ||
                     read_open_mpi(environment, role) || read_slurm(environment, role) ||
                     read_pmi(environment, role);
  environment.raise();
  if (!found) return role;
  if (auto key = environment.text(comm::kJobKeyVariable)) {
    comm::check_job_key(*key, comm::kJobKeyVariable);
    role.job_key = std::move(*key);
  }
  role.spans_machines = ranks_span_machines(environment, role);
  role.check();
  return role;
}

void RoleMaker::check() const {
  std::vector<std::string> problems;
  if (world_size < 1) problems.push_back(format("the number of ranks is {}", world_size));
  if (rank < 0 || rank >= world_size) {
    problems.push_back(format("rank {} is outside 0..{}", rank, world_size - 1));
  }
  if (local_rank < 0 || local_rank >= local_world_size) {
    problems.push_back(format("local rank {} is outside 0..{}", local_rank, local_world_size - 1));
  } else if (local_world_size > world_size && world_size >= 1) {
    problems.push_back(format("local rank {} of {} on this machine, of {} in all", local_rank,
                              local_world_size, world_size));
  }
  if (world_size > 1 && master_address.empty()) {
    problems.emplace_back("MASTER_ADDR is not set, so there is no address for the rendezvous");
  }
  if (is_elastic && world_size > 1 && store_host == StoreHost::kRankZero) {
    problems.emplace_back(
        "FLEET_ELASTIC=1 without fleetrun: rank 0 would host the store, and could not be lost");
  }
  if (world_size > 1 && master_port == 0) {
    problems.emplace_back("MASTER_PORT is not set, or 0");
  } else if (world_size > 1 && (master_port < 1 || master_port > 65535)) {
    problems.push_back(format("MASTER_PORT is {}, not a port", master_port));
  }
  if (!problems.empty()) {
    throw UsageError::all("comm", format("the ranks are inconsistent (from {}):", source), problems,
                          "start the program with fleetrun");
  }
}

RoleMaker PaddleCloudRoleMaker::role() const {
  if (!is_collective) {
    throw UsageError("comm", "is_collective = false asks for parameter servers, and Fleet has none",
                     "say {.is_collective = true}: the ranks train by collectives");
  }
  return RoleMaker::from_environment();
}

}  // namespace fleet
