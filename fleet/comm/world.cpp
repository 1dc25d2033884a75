#include "fleet/comm/world.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "fleet/comm/elastic_group.h"
#include "fleet/comm/meeting.h"
#include "fleet/comm/peer_watch.h"
#include "fleet/comm/store.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/process_setup.h"
#include "fleet/core/training_devices.h"

namespace fleet {
namespace {

using std::chrono::milliseconds;

struct WorldState {
  RoleMaker role;
  std::vector<std::string> endpoints;
  std::optional<comm::Store> hosted;  // kept open by rank 0 when no launcher hosts it
  std::optional<comm::Store> store;
  std::shared_ptr<comm::PeerWatch> watch;
  std::shared_ptr<comm::Communicator> communicator;
};

// Never destroyed by the end of main: without `shutdown` there is no safe order for it.
WorldState*& state() {
  static WorldState* world = nullptr;
  return world;
}

// A process that ends without `shutdown` runs the engine's static destructors: no thread of ours
// may still be in the engine then.
void rest_at_exit() {
  [[maybe_unused]] static const int registered = std::atexit([] {
    if (state() == nullptr || !state()->watch) return;
    state()->watch->rest();
    if (const auto& group = state()->communicator->elastic()) group->rest();
  });
}

const WorldState& joined(const char* call) {
  if (state() == nullptr) {
    throw Error("comm", format("{} before fleet::init()", call),
                "call fleet::init() first in main");
  }
  return *state();
}

milliseconds time_limit() {
  const char* text = std::getenv("FLEET_TIMEOUT_S");
  if (text == nullptr) return milliseconds(600'000);
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  constexpr double kYear = 365 * 86400.0;  // every call has a finite limit
  if (end == text || *end != '\0' || !(seconds >= 0.001 && seconds <= kYear)) {
    throw Error("comm", format("FLEET_TIMEOUT_S='{}' is not a number of seconds above 0", text),
                "give the limit of every call between ranks, such as 600");
  }
  return milliseconds(static_cast<int64_t>(seconds * 1e3));
}

// The address of this machine that reaches the master: the one the others can reach it by.
std::string own_address(const std::string& master, int port) {
  if (const char* told = std::getenv("FLEET_ADDRESS")) return told;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(master.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "";
  std::string address;
  for (auto* item = found; item != nullptr && address.empty(); item = item->ai_next) {
    const int socket = ::socket(item->ai_family, SOCK_DGRAM, 0);
    if (socket < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[NI_MAXHOST] = {};
    if (::connect(socket, item->ai_addr, item->ai_addrlen) == 0 &&
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof(text), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      address = text;
    }
    ::close(socket);
  }
  ::freeaddrinfo(found);
  return address;
}

// A rank that was promised a GPU must not train somewhere else in silence.
void check_device(const RoleMaker& role) {
  if (role.gpu.empty()) return;
  std::string known;
  for (const auto type : training_devices()) {
    if (type != torch::kCPU) return;  // which GPU is whose, the program knows by its local rank
    known += c10::DeviceTypeName(type, /*lower_case=*/false);
  }
  throw UsageError("comm",
                   format("rank {} was started for GPU {}, and this build of Fleet trains on the "
                          "{} only",
                          role.rank, role.gpu, known),
                   format("start it with fleetrun --nproc_per_node {} instead of --gpus",
                          role.local_world_size));
}

// Waits for every rank, and says which ones did not come.
void meet(const comm::Store& store, const RoleMaker& role, milliseconds limit) {
  const auto missing = comm::meet(store, role.rank, role.world_size, limit);
  if (missing.empty()) return;
  throw Error("comm",
              format("rank {} waited {:.0f} s at {}:{}, and of {} ranks these did not come:{}",
                     role.rank, static_cast<double>(limit.count()) / 1e3, role.master_address,
                     role.master_port, role.world_size, missing),
              "see whether they were started, and whether they died before fleet::init()");
}

comm::Store connect(const RoleMaker& role, milliseconds limit) {
  try {
    return comm::Store::connect(role.master_address, static_cast<uint16_t>(role.master_port),
                                limit);
  } catch (const Error& error) {
    if (role.store_is_hosted) throw;
    throw Error(
        "comm",
        format("rank {} waited for rank 0, which hosts the store, and it did not come:\n  {}",
               role.rank, error.what()));
  }
}

void join(WorldState& world, milliseconds limit) {
  const auto& role = world.role;
  if (!role.store_is_hosted && role.rank == 0) {
    world.hosted = comm::Store::host(static_cast<uint16_t>(role.master_port), limit);
  }
  auto connection = connect(role, limit);
  // A restarted job must not find what the one before left in the launcher's store.
  world.store = connection.prefixed(format("fleet/{}", role.restart_count));
  meet(*world.store, role, limit);

  comm::CommunicatorOptions options;
  options.timeout = limit;
  options.address = own_address(role.master_address, role.master_port);
  if (const char* backend = std::getenv("FLEET_BACKEND")) options.backend = backend;
  world.watch = std::make_shared<comm::PeerWatch>(world.store->duplicate(), role.rank,
                                                  role.world_size, options.address);
  world.watch->gather();
  if (role.is_elastic) {
    world.communicator = std::make_shared<comm::Communicator>(
        std::make_shared<comm::ElasticGroup>(*world.store, role.rank, role.world_size, options,
                                             comm::ElasticOptions{.min_ranks = role.min_ranks}),
        options, world.watch);
  } else {
    world.communicator = std::make_shared<comm::Communicator>(
        world.store->prefixed("world"), role.rank, role.world_size, options, world.watch);
  }
  if (world.endpoints.empty()) {
    for (const auto& peer : world.watch->peers()) {
      world.endpoints.push_back(format("{}:{}", peer.address, role.master_port));
    }
  }
}

}  // namespace

void init() { init(RoleMaker::from_environment()); }

void init(const PaddleCloudRoleMaker& role) { init(role.role()); }

void init(const RoleMaker& role) {
  if (state() != nullptr) {
    throw Error("comm", "fleet::init() was called twice", "call it once, at the start of main");
  }
  role.check();
  check_device(role);
  const auto limit = time_limit();
  auto world = std::make_unique<WorldState>();
  world->role = role;
  world->endpoints = role.endpoints;
  log::set_rank(role.rank, role.world_size);
  const auto setup = set_up_process(role.local_world_size);
  if (role.world_size > 1) {
    join(*world, limit);
  } else {
    world->communicator = std::make_shared<comm::Communicator>();
    if (world->endpoints.empty()) world->endpoints = {"127.0.0.1:0"};
  }
  log::info("init", format("{} rank{} ({}), {}", role.world_size, role.world_size == 1 ? "" : "s",
                           role.source, setup));
  state() = world.release();
  rest_at_exit();
}

bool is_initialized() { return state() != nullptr; }

void shutdown() {
  if (state() == nullptr) return;
  std::unique_ptr<WorldState> world(state());
  state() = nullptr;
  if (std::uncaught_exceptions() > 0) {
    // Closing would wait for collectives under way; the end of the process closes everything.
    world.release();  // NOLINT: left behind on purpose
    return;
  }
  if (world->communicator->elastic()) {
    world->communicator->barrier("shutdown");
    world->watch->rest();
    world->communicator->elastic()->leave();
  } else if (world->role.world_size > 1) {
    world->communicator->barrier("shutdown");
    // Rank 0 may host the store: it leaves last, when every rank has said that it needs it no more.
    world->watch->rest();
    if (world->role.rank == 0) {
      for (int rank = 1; rank < world->role.world_size; ++rank) {
        world->store->wait_for(format("left/{}", rank), milliseconds(5000));
      }
    } else {
      world->store->set(format("left/{}", world->role.rank), "1");
    }
  }
  log::set_rank(0, 1);
}

int worker_index() { return joined("worker_index()").role.rank; }
int worker_num() { return joined("worker_num()").role.world_size; }
bool is_first_worker() { return joined("is_first_worker()").communicator->index() == 0; }
int local_worker_index() { return joined("local_worker_index()").role.local_rank; }
int local_worker_num() { return joined("local_worker_num()").role.local_world_size; }
std::vector<std::string> worker_endpoints() { return joined("worker_endpoints()").endpoints; }
void barrier_worker() { joined("barrier_worker()").communicator->barrier("barrier_worker"); }

void all_reduce_sum(const torch::Tensor& tensor) {
  joined("all_reduce_sum()")
      .communicator->all_reduce(tensor, comm::ReduceOp::kSum, "all_reduce_sum");
}

std::shared_ptr<comm::Communicator> world() {
  return state() ? state()->communicator : std::make_shared<comm::Communicator>();
}

}  // namespace fleet
