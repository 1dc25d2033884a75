#include "tools/fleetrun/rendezvous.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"

#include "tools/fleetrun/network.h"
#include "tools/fleetrun/node_link.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kStoreTimeout = 30s;
constexpr auto kSayEvery = 10s;
constexpr auto kAskEvery = 100ms;
constexpr auto kConnectSlice = 500ms;
constexpr double kMissedAfter_s = 15;  // a little more than node 0 takes for it
constexpr int kFirstPort = 6070;  // of the ranks' endpoints on several nodes, as in the original

// A finite wait that says regularly what it waits for and ends on Ctrl-C.
class Patience {
 public:
  Patience(double seconds, SignalInbox& inbox) : seconds_(seconds), inbox_(inbox) {}

  /// False when the time is up.
  bool wait(const std::string& for_what) {
    inbox_.check();
    const auto passed = Clock::now() - begin_;
    if (passed >= std::chrono::duration<double>(seconds_)) return false;
    if (passed >= next_word_) {
      next_word_ += kSayEvery;
      log::info("fleetrun",
                format("waiting for {}: {} s of {} s", for_what,
                       std::chrono::duration_cast<std::chrono::seconds>(passed).count(), seconds_));
    }
    std::this_thread::sleep_for(kAskEvery);
    return true;
  }

 private:
  double seconds_;
  SignalInbox& inbox_;
  Clock::time_point begin_ = Clock::now();
  Clock::duration next_word_ = kSayEvery;
};

std::vector<std::string> endpoints_at(const std::string& address, int ranks, bool alone) {
  std::vector<std::string> endpoints;
  if (alone) {
    for (const auto port : free_ports(static_cast<size_t>(ranks)))
      endpoints.push_back(format("{}:{}", address, port));
    return endpoints;
  }
  const char* start = std::getenv("FLAGS_START_PORT");
  const int first = start != nullptr ? std::atoi(start) : kFirstPort;
  for (int rank = 0; rank < ranks; ++rank)
    endpoints.push_back(format("{}:{}", address, first + rank));
  return endpoints;
}

comm::Store connect(const Address& master, double timeout_s, SignalInbox& inbox) {
  Patience patience(timeout_s, inbox);
  while (true) {
    try {
      comm::Store::connect(master.host, master.port, kConnectSlice);  // short, to hear Ctrl-C
      return comm::Store::connect(master.host, master.port, kStoreTimeout);
    } catch (const Error&) {
      if (patience.wait(format("node 0 at {}:{}", master.host, master.port))) continue;
      throw Error("fleetrun",
                  format("nothing answers at {}:{} after {} s, so node 0 cannot be joined",
                         master.host, master.port, timeout_s),
                  "start fleetrun on node 0 with the same addresses, or check the firewall");
    }
  }
}

std::string introduction(const Options& options, const Node& node) {
  return nlohmann::json{{"address", node.address},
                        {"endpoints", node.endpoints},
                        {"nodes", options.node_count()},
                        {"max_restarts", options.max_restarts}}
      .dump();
}

std::string joined_key(int node) { return format("joined/{}", node); }

// A node that was here `times` before may come again once node 0 has missed it as many times.
void wait_for_place(comm::Store& table, const Cluster& cluster, int64_t times, SignalInbox& inbox) {
  const int node = cluster.node_rank;
  Patience patience(kMissedAfter_s, inbox);
  while (table.add(times_vanished_key(node), 0) < times) {
    if (patience.wait(format("node 0 to miss the node {} before this one", node))) continue;
    table.add(joined_key(node), -1);
    throw Error("fleetrun", format("node {} has joined already", node),
                "give every node its own --node_rank");
  }
  const auto before = nlohmann::json::parse(table.get(format("node/{}", node)));
  if (before.at("endpoints") == nlohmann::json(cluster.own().endpoints)) return;
  throw Error("fleetrun",
              format("node {} had other ranks before, at {}, and the job still counts on them",
                     node, before.at("endpoints").dump()),
              "start it with the same flags as before");
}

// Every node writes its own introduction and reads the others'.
Rendezvous exchange(const Options& options, comm::Store store, Cluster cluster,
                    SignalInbox& inbox) {
  auto table = store.prefixed("fleetrun");
  const int count = options.node_count();
  const auto key = [](int node) { return format("node/{}", node); };
  const auto joined = table.add(joined_key(cluster.node_rank), 1);
  if (joined > 1) wait_for_place(table, cluster, joined - 1, inbox);
  table.set(key(cluster.node_rank), introduction(options, cluster.own()));

  Patience patience(options.join_timeout_s, inbox);
  int max_restarts = options.max_restarts;
  for (int node = 0; node < count; ++node) {
    std::optional<std::string> text;
    while (!(text = table.try_get(key(node)))) {
      const auto who = options.ips.empty() ? format("node {} of {}", node, count)
                                           : format("node {} of {} ({})", node, count,
                                                    options.ips[static_cast<size_t>(node)]);
      if (!patience.wait(who))
        throw Error("fleetrun", format("{} has not joined after {} s", who, options.join_timeout_s),
                    "start fleetrun there with the same addresses, or check the firewall");
    }
    const auto json = nlohmann::json::parse(*text);
    if (json.at("nodes") != count)
      throw Error("fleetrun",
                  format("node {} was started for {} nodes and this one for {}", node,
                         json.at("nodes").get<int>(), count),
                  "use the same --ips or --nnodes on every node");
    if (node == 0) max_restarts = json.at("max_restarts");
    cluster.nodes[static_cast<size_t>(node)] = {json.at("address"), json.at("endpoints")};
  }
  if (max_restarts != options.max_restarts)
    log::info("fleetrun", format("--max_restarts {} of node 0 is in force", max_restarts));
  const auto attempt = joined > 1 ? table.try_get(kAttemptKey) : std::nullopt;
  return {std::move(store), std::move(cluster), max_restarts, attempt ? std::stoi(*attempt) : 0};
}

}  // namespace

Rendezvous meet(const Options& options, SignalInbox& inbox) {
  const int count = options.node_count();
  Cluster cluster;
  cluster.nodes.resize(static_cast<size_t>(count));
  if (count == 1) {
    // "--ips 10.0.0.1" alone is a claim about this machine as well.
    const auto address = options.ips.empty() ? "127.0.0.1" : options.ips.front();
    if (!options.ips.empty()) own_position(options.ips);
    auto store = comm::Store::host(0, kStoreTimeout, "127.0.0.1");
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
  auto address = cluster.node_rank == 0 ? cluster.master.host : address_towards(cluster.master);
  if (!options.ips.empty()) address = options.ips[static_cast<size_t>(cluster.node_rank)];
  cluster.nodes[static_cast<size_t>(cluster.node_rank)] = {
      address, endpoints_at(address, options.local_ranks(), false)};
  auto store = cluster.node_rank == 0 ? comm::Store::host(cluster.master.port, kStoreTimeout)
                                      : connect(cluster.master, options.join_timeout_s, inbox);
  return exchange(options, std::move(store), std::move(cluster), inbox);
}

}  // namespace fleet::launch
