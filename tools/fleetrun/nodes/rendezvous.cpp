// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/nodes/rendezvous.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "fleet/comm/rendezvous/network_address.h"
#include "fleet/comm/rendezvous/store/job_key.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

#include "tools/fleetrun/nodes/network.h"
#include "tools/fleetrun/nodes/node_coordinator.h"
#include "tools/fleetrun/nodes/node_record.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kStoreTimeout = 30s;
constexpr auto kLogEvery = 10s;
constexpr auto kAskEvery = 100ms;
constexpr auto kConnectSlice = 500ms;
constexpr double kDetectedAfter_s = 15;  // a little more than node 0 needs to detect it
constexpr int kFirstPort = 6070;         // of the ranks' endpoints on several nodes, as in Paddle

// A finite wait that logs regularly what it waits for and ends on Ctrl-C.
class WaitLimit {
 public:
  WaitLimit(double seconds, SignalInbox& inbox) : seconds_(seconds), inbox_(inbox) {}

  /// False when the time is up. `for_what` is asked for when there is something to log.
  bool wait(const std::function<std::string()>& for_what) {
    inbox_.check();
    const auto passed = Clock::now() - begin_;
    if (passed >= std::chrono::duration<double>(seconds_)) return false;
    if (passed >= next_log_) {
      next_log_ += kLogEvery;
      log::info("fleetrun",
                format("waiting for {}: {} s of {} s", for_what(),
                       std::chrono::duration_cast<std::chrono::seconds>(passed).count(), seconds_));
    }
    std::this_thread::sleep_for(kAskEvery);
    return true;
  }

 private:
  double seconds_;
  SignalInbox& inbox_;
  Clock::time_point begin_ = Clock::now();
  Clock::duration next_log_ = kLogEvery;
};

int first_port() {
  const char* text = std::getenv("FLAGS_START_PORT");
  if (text == nullptr) return kFirstPort;
  int port = 0;
  const auto* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, port);
  if (error == std::errc() && stop == end && port > 0 && port <= 65535) return port;
  throw UsageError("fleetrun", format("FLAGS_START_PORT='{}' is not a port", printable(text)),
                   "give the port of the first rank's endpoint, such as 6070");
}

std::vector<std::string> endpoints_at(const std::string& address, int ranks, bool alone) {
  std::vector<std::string> endpoints;
  if (alone) {
    for (const auto port : free_ports(static_cast<size_t>(ranks)))
      endpoints.push_back(format("{}:{}", address, port));
    return endpoints;
  }
  const int first = first_port();
  for (int rank = 0; rank < ranks; ++rank)
    endpoints.push_back(format("{}:{}", address, first + rank));
  return endpoints;
}

// The secret of the job. A single node makes one itself.
std::string job_key(const Options& options, const Address& master) {
  if (options.no_job_key) {
    log::warn("fleetrun",
              format("--no_job_key: any host that reaches {}:{} can read and change this job",
                     master.host, master.port));
    return "";
  }
  if (!options.job_key_file.empty()) return comm::job_key_from_file(options.job_key_file);
  auto key = comm::job_key_from_environment();
  if (!key.empty()) return key;
  if (options.node_count() == 1) return comm::make_job_key();
  throw UsageError(
      "fleetrun",
      format(
          "{} nodes need a job key that all of them have: without one, any host that reaches {}:{} "
          "could read and change the job",
          options.node_count(), master.host, master.port),
      "set the same FLEET_JOB_KEY on every node, or give --job_key_file FILE there: (umask 077; "
      "openssl rand -hex 32 > FILE) makes one; --no_job_key starts without one");
}

comm::Store host(const Cluster& cluster) {
  // Nodes with a loopback address of the master are on this machine; a name may resolve to one here
  // only.
  const auto bind =
      comm::bind_address(cluster.master.host, !comm::is_loopback_name(cluster.master.host));
  if (!bind.warning.empty()) log::warn("fleetrun", bind.warning);
  return comm::Store::host(cluster.master.port, kStoreTimeout, bind.address, cluster.job_key);
}

comm::Store connect(const Cluster& cluster, double timeout_s, WaitLimit& limit) {
  const auto& [name, port] = cluster.master;
  while (true) {
    try {
      comm::Store::connect(name, port, kConnectSlice,
                           cluster.job_key);  // short, so that Ctrl-C is handled
      return comm::Store::connect(name, port, kStoreTimeout, cluster.job_key);
    } catch (const comm::StoreUnreachable& error) {
      const auto& reason = error.reason();
      if (limit.wait([&] { return format("node 0 at {}:{} ({})", name, port, reason); })) continue;
      throw Error("fleetrun",
                  format("nothing answers at {}:{} after {} s ({}), so node 0 cannot be joined",
                         name, port, timeout_s, reason),
                  "start fleetrun on node 0 with the same addresses, or check the firewall");
    }
  }
}

int number_in(const std::string& text) {
  int number = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end && number >= 0) return number;
  throw Error("fleetrun", format("node 0 says that it is at attempt '{}'", printable(text, 80)),
              "use the same version of fleetrun on every node");
}

std::string record_key(int node) { return format("node/{}", node); }
std::string joined_key(int node) { return format("joined/{}", node); }

// A node that has joined `times` before may rejoin once node 0 has detected its loss as many times.
void wait_for_own_slot(comm::Store& table, const Cluster& cluster, int64_t times,
                       SignalInbox& inbox) {
  const int node = cluster.node_rank;
  WaitLimit limit(kDetectedAfter_s, inbox);
  while (table.add(times_lost_key(node), 0) < times) {
    if (limit.wait([&] { return format("node 0 to detect the loss of node {}", node); })) continue;
    table.add(joined_key(node), -1);
    throw UsageError("fleetrun", format("node {} has joined already", node),
                     "give every node its own --node_rank");
  }
  const auto before = NodeRecord::from_json(table.get(record_key(node)), node).node.endpoints;
  if (before == cluster.own().endpoints) return;
  throw UsageError(
      "fleetrun",
      format("node {} had other ranks before, at {}, and the job expects the same ones", node,
             to_text(before)),
      "start it with the same flags as before");
}

// Nodes whose command lines contradict each other. All that have joined learn of it before node 0
// ends, and with it the store: an error of the connection would be tried again.
class Contradiction {
 public:
  Contradiction(comm::Store& table, const Cluster& cluster, SignalInbox& inbox)
      : table_(table), cluster_(cluster), inbox_(inbox) {}

  [[noreturn]] void refuse(const std::string& what, const std::string& for_others) {
    table_.set(kKey, for_others);
    end(what);
  }
  /// Throws what another node has found.
  void check() {
    if (const auto what = table_.try_get(kKey)) end(printable(*what, 200));
  }

 private:
  static constexpr auto kKey = "contradiction";
  static constexpr auto kNodesThatKnow = "contradiction/known";

  [[noreturn]] void end(const std::string& what) {
    table_.add(kNodesThatKnow, 1);
    if (cluster_.node_rank == 0) wait_for_others();
    throw UsageError("fleetrun", what, "use the same --ips or --nnodes on every node");
  }
  void wait_for_others() {
    WaitLimit limit(kDetectedAfter_s, inbox_);
    const auto joined = [&] {
      int64_t nodes = 0;
      for (int node = 0; node < std::ssize(cluster_.nodes); ++node)
        nodes += table_.add(joined_key(node), 0) > 0 ? 1 : 0;
      return nodes;
    };
    while (table_.add(kNodesThatKnow, 0) < joined() &&
           limit.wait([] { return "the other nodes to end"; })) {
    }
  }

  comm::Store& table_;
  const Cluster& cluster_;
  SignalInbox& inbox_;
};

struct MissingNodes {
  std::string names;  // "node 1 of 4, node 3 of 4 (10.0.0.4)"
  int count = 0;
};

// Those from `first` on that have published no record.
MissingNodes missing_nodes(comm::Store& table, const Options& options, int first) {
  constexpr int kNamed = 8;
  MissingNodes missing;
  for (int node = first; node < options.node_count(); ++node) {
    if (table.try_get(record_key(node)) || ++missing.count > kNamed) continue;
    missing.names +=
        format("{}node {} of {}", missing.count == 1 ? "" : ", ", node, options.node_count());
    if (!options.ips.empty())
      missing.names += format(" ({})", options.ips[static_cast<size_t>(node)]);
  }
  if (missing.count > kNamed) missing.names += format(" and {} more", missing.count - kNamed);
  return missing;
}

// Every node publishes its record and reads the others'.
Rendezvous exchange(const Options& options, comm::Store store, Cluster cluster, SignalInbox& inbox,
                    WaitLimit& limit) {
  auto table = store.prefixed("fleetrun");
  const int count = options.node_count();
  const auto joined = table.add(joined_key(cluster.node_rank), 1);
  if (joined > 1) wait_for_own_slot(table, cluster, joined - 1, inbox);
  const NodeRecord own{cluster.own(), count, options.max_restarts};
  table.set(record_key(cluster.node_rank), own.to_json());

  Contradiction contradiction(table, cluster, inbox);
  int max_restarts = options.max_restarts;
  for (int node = 0; node < count; ++node) {
    std::optional<std::string> text;
    while (!(text = table.try_get(record_key(node)))) {
      contradiction.check();
      if (limit.wait([&] { return missing_nodes(table, options, node).names; })) continue;
      const auto missing = missing_nodes(table, options, node);
      if (missing.count == 0) continue;  // it came just now
      throw Error("fleetrun",
                  format("{} {} not joined after {} s", missing.names,
                         missing.count == 1 ? "has" : "have", options.join_timeout_s),
                  "start fleetrun there with the same addresses, or check the firewall");
    }
    const auto read = NodeRecord::from_json(*text, node);
    if (read.nodes != count) {
      const auto other = format("node {} was started for {} nodes and", node, read.nodes);
      contradiction.refuse(format("{} this one for {}", other, count),
                           format("{} node {} for {}", other, cluster.node_rank, count));
    }
    if (node == 0) max_restarts = read.max_restarts;
    cluster.nodes[static_cast<size_t>(node)] = read.node;
  }
  if (max_restarts != options.max_restarts)
    log::info("fleetrun", format("--max_restarts {} of node 0 applies", max_restarts));
  const auto attempt = joined > 1 ? table.try_get(kAttemptKey) : std::nullopt;
  return {std::move(store), std::move(cluster), max_restarts, attempt ? number_in(*attempt) : 0};
}

}  // namespace

Rendezvous join_rendezvous(const Options& options, SignalInbox& inbox) {
  const int count = options.node_count();
  Cluster cluster;
  cluster.nodes.resize(static_cast<size_t>(count));
  if (count == 1) {
    // A single --ips must be this machine too.
    const auto address = options.ips.empty() ? "127.0.0.1" : options.ips.front();
    if (!options.ips.empty()) own_position(options.ips);
    cluster.job_key = job_key(options, {"127.0.0.1", 0});
    auto store = comm::Store::host(0, kStoreTimeout, "127.0.0.1", cluster.job_key);
    cluster.nodes[0] = {address, endpoints_at(address, options.local_ranks(), true)};
    cluster.master = {"127.0.0.1", store.port()};
    return {std::move(store), std::move(cluster), options.max_restarts};
  }
  if (options.ips.empty()) {
    cluster.master = *options.master_address();
    cluster.node_rank = options.node_rank;
  } else {
    cluster.master = {options.ips.front(), static_cast<uint16_t>(options.master_port)};
    cluster.node_rank = own_position(options.ips);
  }
  cluster.job_key = job_key(options, cluster.master);
  auto address = cluster.node_rank == 0
                     ? cluster.master.host
                     : comm::address_towards(cluster.master.host, cluster.master.port);
  if (!options.ips.empty()) address = options.ips[static_cast<size_t>(cluster.node_rank)];
  cluster.nodes[static_cast<size_t>(cluster.node_rank)] = {
      address, endpoints_at(address, options.local_ranks(), false)};
  WaitLimit limit(options.join_timeout_s, inbox);  // in total
  auto store =
      cluster.node_rank == 0 ? host(cluster) : connect(cluster, options.join_timeout_s, limit);
  return exchange(options, std::move(store), std::move(cluster), inbox, limit);
}

}  // namespace fleet::launch
