// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fleet/comm/elastic/elastic_group.h"
#include "fleet/comm/elastic/liveness.h"
#include "fleet/comm/rendezvous/peer_watch.h"

namespace fleet::comm::elastic_test {

using namespace std::chrono_literals;
using Kind = Collective::Kind;

/// The end of a rank that is a thread.
struct SimulatedCrash {};

// Ranks as threads; one that throws SimulatedCrash is lost, like a process that has ended.
class Ranks {
 public:
  using Body = std::function<void(ElasticGroup&)>;
  explicit Ranks(int size, CommunicatorOptions options = {.timeout = 20s})
      : size_(size), options_(std::move(options)), lost_declarer_(store_, size, 60s) {}
  ~Ranks() { join(); }

  void start(int rank, const Body& body, ElasticOptions elastic = {}, bool has_heartbeat = true) {
    threads_.emplace_back([=, this] {
      std::optional<PeerWatch> watch;
      try {
        watch.emplace(store_, rank, size_, "127.0.0.1");
        if (has_heartbeat) watch->gather_identities();
        ElasticGroup group(store_, rank, size_, options_, elastic);
        body(group);
      } catch (const SimulatedCrash&) {
        bury(rank);
      } catch (const std::exception& error) {
        bury(rank);
        const std::lock_guard lock(mutex_);
        errors_[rank] = error.what();
      }
    });
  }

  /// What ranks have thrown, by rank, once all have ended.
  const std::map<int, std::string>& join() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
    return errors_;
  }
  void bury(int rank) {
    const std::lock_guard lock(mutex_);
    lost_declarer_.declare_lost(*lost_declarer_.slot_of(rank, 1s));
  }

 private:
  int size_;
  CommunicatorOptions options_;
  Store store_ = Store::in_memory();
  std::mutex mutex_;
  Liveness lost_declarer_;
  std::map<int, std::string> errors_;
  std::vector<std::thread> threads_;
};

inline const std::map<int, std::string> kNoErrors;

inline void sum(ElasticGroup& group, const torch::Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
  group.submit({.kind = Kind::kAllReduce, .tensors = {tensor}, .op = op, .what = "a sum"}).get();
}

// Before the end, as in a program: a rank that leaves breaks its connections.
inline void part(ElasticGroup& group) { group.submit({.what = "the end"}).get(); }

// Says in the sum who has contributed.
inline torch::Tensor own_digit(const ElasticGroup& group) {
  int64_t digit = 1;
  for (int i = 0; i < group.rank(); ++i) digit *= 10;
  return torch::full({3}, digit, torch::kLong);
}

}  // namespace fleet::comm::elastic_test
