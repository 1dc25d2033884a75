#include "fleet/comm/role_maker.h"

#include <charconv>
#include <cstdlib>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet {
namespace {

/// Reads variables and collects what is wrong with them, so that all of it is reported at once.
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
      problems_.push_back(format("{}='{}' is not a whole number", name, *value));
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
    if (!value) problems_.push_back(format("{} is not set, though {} is", name, because));
    return value.value_or(0);
  }

  void problem(std::string text) { problems_.push_back(std::move(text)); }

  void raise() const {
    if (problems_.empty()) return;
    throw Error::all("comm", "the environment does not say clearly which rank this is:", problems_,
                     "start the program with fleetrun, or unset what a launcher has left behind");
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

// A port that all ranks of one job derive alike when nothing tells them one.
int port_from(const std::string& job) {
  uint32_t hash = 2166136261u;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 10000);
}

void read_master(Environment& environment, RoleMaker& role) {
  if (const auto address = environment.text("MASTER_ADDR")) role.master_address = *address;
  if (const auto port = environment.number("MASTER_PORT")) role.master_port = *port;
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
  if (const auto list = environment.text("PADDLE_TRAINER_ENDPOINTS")) {
    role.endpoints = split(*list, ',');
    if (world && static_cast<int>(role.endpoints.size()) != *world) {
      environment.problem(format("PADDLE_TRAINER_ENDPOINTS names {} ranks, {} is {}",
                                 role.endpoints.size(), world_name, *world));
    }
  }
  const auto local = environment.agreed("LOCAL_RANK", "PADDLE_RANK_IN_NODE");
  const auto local_world = environment.number("LOCAL_WORLD_SIZE");
  role.local_rank = local.value_or(role.rank);
  role.local_world_size = local_world.value_or(local ? *local + 1 : role.world_size);
  read_master(environment, role);
  if (role.master_address.empty() && !role.endpoints.empty()) {
    const auto colon = role.endpoints[0].rfind(':');
    role.master_address = role.endpoints[0].substr(0, colon);
    role.master_port = std::atoi(role.endpoints[0].substr(colon + 1).c_str());
  }
  const auto agent = environment.text("TORCHELASTIC_USE_AGENT_STORE");
  role.store_is_hosted = agent && (*agent == "True" || *agent == "1" || *agent == "true");
  role.restart_count = environment.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  role.is_elastic = environment.number("FLEET_ELASTIC").value_or(0) != 0;
  role.min_ranks = environment.number("FLEET_MIN_RANKS").value_or(1);
  role.gpu = environment.text("FLAGS_selected_gpus").value_or("");
  return true;
}

// SLURM_STEP_NUM_TASKS exists only inside srun. A batch script sees SLURM_PROCID=0 too, and a
// program started there directly must not wait for ranks that nobody starts.
bool read_slurm(Environment& environment, RoleMaker& role) {
  const auto world = environment.number("SLURM_STEP_NUM_TASKS");
  const auto rank = environment.number("SLURM_PROCID");
  if (!world || !rank) return false;
  role.source = "SLURM_PROCID, SLURM_STEP_NUM_TASKS";
  role.rank = *rank;
  role.world_size = *world;
  role.local_rank = environment.number("SLURM_LOCALID").value_or(0);
  const auto per_node = environment.text("SLURM_STEP_TASKS_PER_NODE");
  role.local_world_size =
      per_node ? std::max(1, std::atoi(per_node->c_str())) : role.local_rank + 1;
  role.local_world_size = std::max(role.local_world_size, role.local_rank + 1);
  read_master(environment, role);
  if (role.master_address.empty()) {
    const auto nodes = environment.text("SLURM_STEP_NODELIST");
    role.master_address = nodes ? first_slurm_host(*nodes) : "127.0.0.1";
  }
  if (role.master_port == 0) {
    role.master_port = port_from(environment.text("SLURM_JOB_ID").value_or("") + "." +
                                 environment.text("SLURM_STEP_ID").value_or(""));
  }
  return true;
}

bool read_open_mpi(Environment& environment, RoleMaker& role) {
  const auto rank = environment.number("OMPI_COMM_WORLD_RANK");
  const auto world = environment.number("OMPI_COMM_WORLD_SIZE");
  if (!rank || !world) return false;
  role.source = "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE";
  role.rank = *rank;
  role.world_size = *world;
  role.local_rank = environment.number("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0);
  role.local_world_size =
      environment.number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(role.local_rank + 1);
  read_master(environment, role);
  if (role.world_size == role.local_world_size) {
    if (role.master_address.empty()) role.master_address = "127.0.0.1";
    if (role.master_port == 0) {
      role.master_port = port_from(environment.text("PMIX_NAMESPACE").value_or("ompi"));
    }
  } else if (role.master_address.empty() || role.master_port == 0) {
    environment.problem(
        "Open MPI does not tell where rank 0 is: pass -x MASTER_ADDR=... -x MASTER_PORT=... to "
        "mpirun");
  }
  return true;
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
  const bool found = read_torchrun_or_paddle(environment, role) || read_slurm(environment, role) ||
                     read_open_mpi(environment, role);
  environment.raise();
  if (found) role.check();
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
  }
  if (world_size > 1 && master_address.empty()) {
    problems.emplace_back("MASTER_ADDR is not set, so the ranks have no place to meet");
  }
  if (is_elastic && world_size > 1 && !store_is_hosted) {
    problems.emplace_back(
        "FLEET_ELASTIC=1 without fleetrun: rank 0 would host the store, and could not be lost");
  }
  if (world_size > 1 && (master_port < 1 || master_port > 65535)) {
    problems.push_back(format("MASTER_PORT is {}, not a port", master_port));
  }
  if (!problems.empty()) {
    throw Error::all("comm", format("the ranks do not fit together (from {}):", source), problems,
                     "start the program with fleetrun");
  }
}

RoleMaker PaddleCloudRoleMaker::role() const {
  if (!is_collective) {
    throw Error("comm", "is_collective = false asks for parameter servers, and Fleet has none",
                "say {.is_collective = true}: the ranks train by collectives");
  }
  return RoleMaker::from_environment();
}

std::string first_slurm_host(const std::string& list) {
  const auto bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const auto end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

}  // namespace fleet
