// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "fleet/comm/communicator.h"
#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/comm/rendezvous/wait_notice.h"

namespace fleet::comm {

/// A collective in flight on any transport. `Communicator::begin` fills in what an error needs.
struct Work::State {
  virtual ~State() = default;
  /// Starts it; a no-op where the transport has already started it.
  virtual void launch() {}
  /// Blocks until complete; throws on failure. Calls `log_wait_if_due` every `until_notice`.
  virtual void block() = 0;
  virtual bool is_done() const = 0;
  /// The ranks that the call waits for, for a log.
  virtual std::string waits_for() const;

  /// From now on this thread waits.
  void begin_wait() { notice.emplace("comm", timeout, notice_every); }
  std::chrono::milliseconds until_notice() const { return notice->until_next(); }
  /// `[comm] rank 0: waits for barrier (start): rank 1 (node2, pid 7) is stopped (10 s of 600 s)`
  void log_wait_if_due();

  /// Runs `work`; what it throws becomes an Error with the call and the rank that failed.
  template <typename F>
  void guarded(F&& work) const;
  [[noreturn]] void fail(const std::string& reason) const;

  std::string what;
  std::chrono::system_clock::time_point since;
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds notice_every{};
  std::optional<WaitNotice> notice;
  int rank = 0;
  std::string group;
  uint64_t number = 0;  // among the group's calls
  std::shared_ptr<PeerWatch> watch;
};

}  // namespace fleet::comm
