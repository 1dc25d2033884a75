// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <c10/util/intrusive_ptr.h>

#include "fleet/core/error.h"

namespace c10d {
class Store;
}

namespace fleet::comm {

class WaitNotice;

/// No process hosts a store at that address, or it cannot be reached.
class StoreUnreachable : public Error {
 public:
  StoreUnreachable(std::string_view what, std::string_view fix, std::string reason)
      : Error("comm", what, fix), reason_(std::move(reason)) {}

  /// "Connection refused"
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// The rendezvous store: a small key-value table that every process of a job can reach. One process
/// hosts it (the launcher, or rank 0 without one), the others connect. Reading and writing need the
/// job's key (job_key.h).
///
/// Copies share one connection, and a call that waits blocks it: give every thread that may wait
/// its own `duplicate()`. Every wait is finite, and every failure is a `fleet::Error` that names
/// the address, the key and the time.
///
///   Store store = Store::host(0, 30s);                       // any free port, this machine only
///   Store peer = Store::connect("127.0.0.1", store.port(), 30s);
///   peer.prefixed("job").set("ready", "yes");
///   store.get("job/ready");                                  // "yes"
class Store {
 public:
  /// Hosts the table at `port` (0: any free one) of `bind_to`, an address or a name of this
  /// machine, for clients with `key`. It lives as long as the last copy.
  static Store host(uint16_t port, std::chrono::milliseconds timeout,
                    const std::string& bind_to = "127.0.0.1", const std::string& key = {});

  /// Waits up to `timeout` for the host; later waits use the same `timeout`. A name that does not
  /// resolve, or a key that is not the host's, is an Error at once. `notice` logs the wait.
  static Store connect(const std::string& host, uint16_t port, std::chrono::milliseconds timeout,
                       const std::string& key = {}, WaitNotice* notice = nullptr);

  /// The same with LibTorch's TCPStore, such as torchrun hosts: it has no job key.
  static Store connect_to_torchrun(const std::string& host, uint16_t port,
                                   std::chrono::milliseconds timeout, WaitNotice* notice = nullptr);

  /// Inside one process, for ranks that are threads; all copies may be used at once.
  static Store in_memory(std::chrono::milliseconds timeout = std::chrono::seconds(30));

  /// Any other store of c10d.
  static Store over(c10::intrusive_ptr<c10d::Store> store);

  /// The same table with `prefix` + "/" before every key.
  Store prefixed(std::string_view prefix) const;

  /// The prefix of every key: "job", or "job/world" when it was prefixed twice.
  const std::string& prefix() const;

  /// The same table through a connection of its own.
  Store duplicate() const;

  /// The port of the host; 0 in memory.
  uint16_t port() const;

  void set(const std::string& key, std::string_view value);
  /// Waits until `key` is set.
  std::string get(const std::string& key);
  std::optional<std::string> try_get(const std::string& key);
  /// Atomically adds to a counter, which starts at 0, and returns the sum.
  int64_t add(const std::string& key, int64_t amount);
  /// Sets `key` unless it is set; returns its value now.
  std::string claim(const std::string& key, const std::string& value);
  void remove(const std::string& key);
  /// False when `key` is not set after `timeout`.
  bool wait_for(const std::string& key, std::chrono::milliseconds timeout);

  /// For what takes a c10d store, such as a process group.
  const c10::intrusive_ptr<c10d::Store>& raw() const;

 private:
  struct State;
  explicit Store(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

}  // namespace fleet::comm
