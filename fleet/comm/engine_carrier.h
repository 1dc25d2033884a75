#pragma once

#include <map>

#include <c10/util/intrusive_ptr.h>

#include "fleet/comm/carrier.h"
#include "fleet/comm/store.h"

namespace c10d {
class Backend;
}

namespace fleet::comm {

/// The engine's collectives: all ranks are there, or the call fails.
class EngineCarrier : public Carrier {
 public:
  /// Returns when all ranks are connected.
  EngineCarrier(const Store& store, int rank, int size, CommunicatorOptions options,
                std::shared_ptr<PeerWatch> watch);
  ~EngineCarrier() override;

  std::unique_ptr<Pending::State> prepare(Call call) override;
  std::vector<int> present() const override;
  /// Where its ranks meet in the store.
  const std::string& group() const override { return store_.prefix(); }
  std::shared_ptr<Carrier> duplicate(const std::string& name) override;

 private:
  struct EngineCall;

  Store store_;
  int rank_;
  int size_;
  CommunicatorOptions options_;
  std::shared_ptr<PeerWatch> watch_;
  c10::intrusive_ptr<c10d::Backend> engine_;
  std::map<std::string, int> duplicates_;  // made so far, by name
};

}  // namespace fleet::comm
