// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include <c10/util/intrusive_ptr.h>

#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/transport/transport.h"

namespace c10d {
class Backend;
}

namespace fleet::comm {

/// LibTorch's collectives: a lost rank fails the call.
class ProcessGroupTransport : public Transport {
 public:
  /// Returns when all ranks are connected.
  ProcessGroupTransport(const Store& store, int rank, int size, CommunicatorOptions options,
                        std::shared_ptr<PeerWatch> watch);
  ~ProcessGroupTransport() override;

  std::unique_ptr<Work::State> prepare(Collective call) override;
  std::vector<int> present() const override;
  /// Its prefix in the store.
  const std::string& group() const override { return store_.prefix(); }
  std::shared_ptr<Transport> duplicate(const std::string& name) override;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const CommunicatorOptions& options() const { return options_; }
  const std::shared_ptr<PeerWatch>& watch() const { return watch_; }
  std::shared_ptr<ProcessGroupTransport> duplicate_group(const std::string& name);
  /// Every rank's `row`, [size, ...], while the group is being made: it is not counted as a call.
  torch::Tensor gather_during_setup(const torch::Tensor& row);

 private:
  struct BackendCall;

  Store store_;
  int rank_;
  int size_;
  CommunicatorOptions options_;
  std::shared_ptr<PeerWatch> watch_;
  CallId setup_call_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::map<std::string, int> duplicates_;  // made so far, by name
};

}  // namespace fleet::comm
