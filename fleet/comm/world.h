// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/comm/role_maker.h"

namespace fleet {

/// Joins the other ranks (RoleMaker::from_environment tells which), sets this process up for
/// training, and logs it: threads per rank = cores / ranks on this machine unless OMP_NUM_THREADS
/// is set; malloc keeps freed pages, since giving them back and faulting them in again can cost a
/// third of a step.
///
/// Environment: FLEET_TIMEOUT_S (limit of every call between ranks, 600), FLEET_BACKEND (gloo or
/// nccl), FLEET_KEEP_PAGES=0 (leave malloc alone), FLEET_ADDRESS (this rank's own address),
/// FLEET_JOB_KEY (the secret of the store, the same on all ranks); FLEET_STORE, FLEET_ELASTIC and
/// FLEET_MIN_RANKS come from fleetrun.
void init();
void init(const RoleMaker& role);
/// As the guide writes it: `init({.is_collective = true})`.
void init(const PaddleCloudRoleMaker& role);
bool is_initialized();

/// Leaves the group: waits for the other ranks, then closes the connections. Without it, a rank
/// that returns from main early may look like a failed one to the others. During stack unwinding it
/// does not wait: the other ranks are in another call.
void shutdown();

int worker_index();
int worker_num();
/// True on the lowest present rank: rank 0, unless an elastic job has lost it.
bool is_first_worker();
int local_worker_index();
int local_worker_num();
/// "host:port" per rank, as given by the launcher, or else the addresses of the rendezvous.
std::vector<std::string> worker_endpoints();
void barrier_worker();

/// Sums `tensor` over all ranks, in place: for counts and metrics.
void all_reduce_sum(const torch::Tensor& tensor);

/// The ranks that `init` joined; a group of one before `init`.
std::shared_ptr<comm::Communicator> world();

}  // namespace fleet
