// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/world.h"

#include <cstdlib>

#include "fleet/comm/elastic/elastic_group.h"
#include "fleet/comm/rendezvous/host_id.h"
#include "fleet/comm/rendezvous/network_address.h"
#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/comm/rendezvous/store/job_key.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/rendezvous/store_based_barrier.h"
#include "fleet/comm/transport/backend.h"
#include "fleet/comm/transport/shared_memory/peer_memory.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/process/environment.h"
#include "fleet/core/process/process_setup.h"
#include "fleet/core/process/training_devices.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"
#include "fleet/core/torch/cpu_features.h"

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

// A process that ends without `shutdown` runs LibTorch's static destructors: no thread of ours may
// still be in LibTorch then.
void stop_threads_at_exit() {
  [[maybe_unused]] static const int registered = std::atexit([] {
    if (state() == nullptr || !state()->watch) return;
    state()->watch->stop();
    if (const auto& group = state()->communicator->elastic()) group->stop();
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
    throw UsageError(
        "comm", format("FLEET_TIMEOUT_S='{}' is not a number of seconds above 0", printable(text)),
        "give the limit of every call between ranks, such as 600");
  }
  return milliseconds(static_cast<int64_t>(seconds * 1e3));
}

std::optional<std::string> variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::optional<std::string>(text) : std::nullopt;
}

// On one rank too, so that a wrong value does not wait for the first job on several.
void check_variables() {
  environment_switch("FLEET_BACKTRACE", false,
                     "1: errors are printed with LibTorch's stack frames");
  comm::is_shared_memory_wanted();
  if (const auto backend = variable("FLEET_BACKEND")) comm::check_backend(*backend);
}

// Before any rank is waited for: a wrong value would be found only when all have arrived.
void check_own_address() {
  const auto address = variable("FLEET_ADDRESS");
  if (!address) return;
  const auto found = comm::try_resolve(*address, 0);
  const bool is_own =
      !found.addresses.empty() && comm::bind_address(*address, false).warning.empty();
  if (is_own) return;
  throw UsageError(
      "comm",
      format("FLEET_ADDRESS='{}' is not an address of this machine{}", printable(*address),
             found.addresses.empty() ? format(" ({})", found.reason) : ""),
      "give one that `ip address` shows here, or unset it: then it is the one with a "
      "route to the master");
}

// The address at which the other ranks can reach this one.
std::string own_address(const RoleMaker& role) {
  if (auto given = variable("FLEET_ADDRESS")) return *given;
  const auto port = static_cast<uint16_t>(role.master_port);
  auto towards = comm::address_towards(role.master_address, port);
  const bool is_loopback = comm::resolve(towards, port).front().is_loopback();
  if (!is_loopback || !role.spans_machines) return towards;
  // Rank 0 of a job whose MASTER_ADDR is "localhost" there, as some schedulers have it.
  const auto name = comm::host_name();
  for (const auto& address : comm::resolve(name, port)) {
    if (!address.is_loopback()) return address.text();
  }
  throw UsageError(
      "comm",
      format("rank {} knows no address by which other machines reach it: MASTER_ADDR={} and "
             "the host name {} are this machine's loopback",
             role.rank, role.master_address, name),
      "set FLEET_ADDRESS to this machine's address");
}

// A rank that was started for a GPU must not train on another device silently.
void check_device(const RoleMaker& role) {
  if (role.gpu.empty()) return;
  std::string known;
  for (const auto type : training_devices()) {
    if (type != torch::kCPU) return;  // the program chooses its GPU by its local rank
    known += c10::DeviceTypeName(type, /*lower_case=*/false);
  }
  throw UsageError("comm",
                   format("rank {} was started for GPU {}, and this build of Fleet trains on the "
                          "{} only",
                          role.rank, role.gpu, known),
                   format("start it with fleetrun --nproc_per_node {} instead of --gpus",
                          role.local_world_size));
}

// An Error names the ranks that did not arrive.
void wait_for_all_ranks(const comm::Store& store, const RoleMaker& role, milliseconds limit) {
  comm::WaitNotice notice("init", limit);
  const auto missing = comm::store_based_barrier(store, role.rank, role.world_size, limit, notice);
  if (missing.empty()) return;
  throw Error("comm",
              format("rank {} waited {:.0f} s at {}:{}, and of {} ranks {} did not arrive",
                     role.rank, static_cast<double>(limit.count()) / 1e3, role.master_address,
                     role.master_port, role.world_size, comm::ranks_text(missing)),
              "see whether they were started, and whether they died before fleet::init()");
}

comm::Store host_store(const RoleMaker& role, milliseconds limit) {
  const auto place = comm::bind_address(role.master_address, role.spans_machines);
  if (!place.warning.empty()) log::warn("comm", place.warning);
  if (role.job_key.empty() && role.spans_machines) {
    log::warn("comm", format("{} is not set: any host that reaches port {} of this machine can "
                             "read and change the store; give all ranks the same random key",
                             comm::kJobKeyVariable, role.master_port));
  }
  return comm::Store::host(static_cast<uint16_t>(role.master_port), limit, place.address,
                           role.job_key);
}

comm::Store connect(const RoleMaker& role, milliseconds limit) {
  const auto port = static_cast<uint16_t>(role.master_port);
  comm::WaitNotice notice("init", limit);
  if (role.store_host == StoreHost::kTorchrun) {
    return comm::Store::connect_to_torchrun(role.master_address, port, limit, &notice);
  }
  try {
    return comm::Store::connect(role.master_address, port, limit, role.job_key, &notice);
  } catch (const Error& error) {
    if (role.store_host != StoreHost::kRankZero) throw;
    throw Error("comm", format("rank {} cannot reach rank 0, which hosts the store:\n  {}",
                               role.rank, error.what()));
  }
}

// The local rank, if no variable gives it.
void count_local_ranks(RoleMaker& role, const std::vector<comm::PeerIdentity>& peers) {
  if (role.knows_local_ranks) return;
  const auto& own = peers[static_cast<size_t>(role.rank)].host_id;
  role.local_rank = role.local_world_size = 0;
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    if (peers[rank].host_id != own) continue;
    if (static_cast<int>(rank) < role.rank) ++role.local_rank;
    ++role.local_world_size;
  }
  role.source += "; local ranks counted by machine";
}

void join(WorldState& world, milliseconds limit) {
  auto& role = world.role;
  check_own_address();
  if (role.store_host == StoreHost::kRankZero && role.rank == 0) {
    world.hosted = host_store(role, limit);
  }
  const auto connection = world.hosted ? *world.hosted : connect(role, limit);
  // A restarted job must not read what its last attempt left in the launcher's store.
  world.store = connection.prefixed(format("fleet/{}", role.restart_count));

  comm::CommunicatorOptions options;
  options.timeout = limit;
  options.address = own_address(role);
  if (const auto backend = variable("FLEET_BACKEND")) options.backend = *backend;
  // It publishes its identity before the barrier, so that no rank waits for it afterwards.
  world.watch = std::make_shared<comm::PeerWatch>(world.store->duplicate(), role.rank,
                                                  role.world_size, options.address);
  wait_for_all_ranks(*world.store, role, limit);
  world.watch->gather_identities();
  count_local_ranks(role, world.watch->peers());
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
  check_variables();
  check_device(role);
  const auto limit = time_limit();
  auto world = std::make_unique<WorldState>();
  world->role = role;
  world->endpoints = role.endpoints;
  log::set_rank(role.rank, role.world_size);
  std::string setup;
  if (role.knows_local_ranks) setup = set_up_process(role.local_world_size);
  if (role.world_size > 1) {
    join(*world, limit);
  } else {
    world->communicator = std::make_shared<comm::Communicator>();
    if (world->endpoints.empty()) world->endpoints = {"127.0.0.1:0"};
  }
  if (!role.knows_local_ranks) setup = set_up_process(world->role.local_world_size);
  log::info("init", format("{} rank{} ({}), {}", role.world_size, role.world_size == 1 ? "" : "s",
                           world->role.source, setup));
  if (const auto text = compat::amx_workaround(); !text.empty()) log::info("init", text);
  state() = world.release();
  stop_threads_at_exit();
}

bool is_initialized() { return state() != nullptr; }

void shutdown() {
  if (state() == nullptr) return;
  std::unique_ptr<WorldState> world(state());
  state() = nullptr;
  if (std::uncaught_exceptions() > 0) {
    // Closing would wait for collectives in flight; the end of the process closes everything.
    world.release();  // NOLINT: leaked on purpose
    return;
  }
  if (world->communicator->elastic()) {
    world->communicator->barrier("shutdown");
    world->watch->stop();
    world->communicator->elastic()->leave();
  } else if (world->role.world_size > 1) {
    world->communicator->barrier("shutdown");
    // Rank 0 may host the store: it leaves last, when no other rank needs the store any more.
    world->watch->stop();
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
