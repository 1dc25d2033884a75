#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace fleet::comm {

/// The place where ranks find each other: a small table of keys that every process of a job can
/// reach. One process hosts it (the launcher, or rank 0 without one), the others connect.
///
/// Copies share one connection, and a call that waits keeps that connection to itself: give every
/// thread that may wait its own `duplicate()`. Every wait is finite, and every failure is a
/// `fleet::Error` that names the address, the key and the time.
///
///   Store store = Store::host(0, 30s);                       // any free port
///   Store peer = Store::connect("127.0.0.1", store.port(), 30s);
///   peer.prefixed("job").set("ready", "yes");
///   store.get("job/ready");                                  // "yes"
class Store {
 public:
  /// Hosts the table at `port` (0: any free one) of the interface with address `bind_to`; the
  /// default is every interface. It lives as long as the last copy.
  static Store host(uint16_t port, std::chrono::milliseconds timeout,
                    const std::string& bind_to = "0.0.0.0");

  /// Waits up to `timeout` for somebody to host; later waits use the same `timeout`.
  static Store connect(const std::string& host, uint16_t port, std::chrono::milliseconds timeout);

  /// Inside one process, for ranks that are threads; all copies may be used at once.
  static Store in_memory(std::chrono::milliseconds timeout = std::chrono::seconds(30));

  /// Any other that c10d has.
  static Store over(c10::intrusive_ptr<c10d::Store> store);

  /// The same table with `prefix` + "/" before every key.
  Store prefixed(std::string_view prefix) const;

  /// What stands before every key: "job", or "job/world" when it was prefixed twice.
  const std::string& prefix() const;

  /// The same table through a connection of its own.
  Store duplicate() const;

  /// Where it is hosted; 0 in memory.
  uint16_t port() const;

  void set(const std::string& key, std::string_view value);
  /// Waits until somebody has set `key`.
  std::string get(const std::string& key);
  std::optional<std::string> try_get(const std::string& key);
  /// Adds to a counter, which starts at 0, and returns the sum: each caller gets another one.
  int64_t add(const std::string& key, int64_t amount);
  /// Sets `key` unless somebody has; returns what it is now.
  std::string claim(const std::string& key, const std::string& value);
  void remove(const std::string& key);
  /// False when `key` is not there after `timeout`.
  bool wait_for(const std::string& key, std::chrono::milliseconds timeout);

  /// For what takes a c10d store, such as a process group.
  const c10::intrusive_ptr<c10d::Store>& raw() const;

 private:
  struct State;
  explicit Store(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

}  // namespace fleet::comm
