// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "fleet/comm/communicator.h"
#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/comm/rendezvous/store/store.h"

#include "tests/support/error_of.h"

namespace fleet::testing {

using Comm = std::shared_ptr<comm::Communicator>;

/// Runs `body` once per rank, each rank a thread with a communicator over loopback; rethrows the
/// first error.
inline void run_ranks(int size,
                      const std::function<void(std::shared_ptr<comm::Communicator>)>& body,
                      comm::CommunicatorOptions options = {
                          .timeout = std::chrono::milliseconds(20'000)}) {
  auto store = comm::Store::in_memory();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        if (size == 1) {
          body(std::make_shared<comm::Communicator>());
          return;
        }
        auto watch = std::make_shared<comm::PeerWatch>(store, rank, size, "127.0.0.1");
        watch->gather_identities();
        body(std::make_shared<comm::Communicator>(store, rank, size, options, watch));
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// Whether all ranks hold the same bits; all of them must ask.
inline bool same_everywhere(const Comm& comm, const torch::Tensor& tensor) {
  const auto all = comm->all_gather(tensor.detach().contiguous(), "a check");
  for (int rank = 1; rank < comm->size(); ++rank) {
    if (!torch::equal(all[0], all[rank])) return false;
  }
  return true;
}

}  // namespace fleet::testing
