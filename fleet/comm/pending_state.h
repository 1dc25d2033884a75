#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "fleet/comm/communicator.h"
#include "fleet/comm/peer_watch.h"

namespace fleet::comm {

/// A call under way, whatever carries it out. `Communicator::begin` fills in what an error needs.
struct Pending::State {
  virtual ~State() = default;
  /// Starts it. What is started by other means does nothing here.
  virtual void launch() {}
  /// Blocks until done; throws anything when it cannot be done.
  virtual void block() = 0;
  virtual bool is_done() const = 0;

  /// Runs `work`; what it throws becomes an error that says which call failed, and who is to blame.
  template <typename Work>
  void guarded(Work&& work) const;
  [[noreturn]] void fail(const std::string& engine) const;

  std::string what;
  std::chrono::system_clock::time_point since;
  std::chrono::milliseconds timeout{};
  int rank = 0;
  std::string group;
  uint64_t number = 0;  // among the group's calls
  std::shared_ptr<PeerWatch> watch;
};

}  // namespace fleet::comm
