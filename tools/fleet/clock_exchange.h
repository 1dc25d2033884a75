// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fleet/core/process/descriptor.h"

namespace fleet::tool {

/// Nanoseconds since 1970 by a host's clock.
using WallClock = std::function<int64_t()>;
int64_t system_nanoseconds();

/// What one host can say about the clock of another.
struct ClockDifference {
  double ahead_s = 0;       // how far the other clock is ahead of this one; below 0: behind
  double uncertain_s = 0;   // half of the quickest round trip: the truth is this near
  double round_trip_s = 0;  // the quickest
};

/// Answers hosts that ask for the time, for `fleet doctor --listen`.
///
/// A question is 16 bytes: a fixed word and the time at which it left. The answer repeats both and
/// adds when the question came and when the answer left, 32 bytes, all numbers big-endian. Nothing
/// else is read or sent; a connection that sends anything else, more than 64 questions, or
/// nothing for 2 s, is closed.
///
///   ClockServer server(29600);
///   server.serve_for(std::chrono::seconds(60));
class ClockServer {
 public:
  /// Listens on all addresses; port 0: any free one. Throws an Error where it cannot.
  explicit ClockServer(int port, WallClock clock = system_nanoseconds);

  int port() const { return port_; }

  /// How many hosts were answered meanwhile.
  int serve_for(std::chrono::milliseconds time);

 private:
  struct Connection;

  Descriptor socket_;
  int port_ = 0;
  WallClock clock_;
};

/// Asks the ClockServer at `host`:`port` several times, by NTP's four times (RFC 5905, section 8),
/// and takes the median. Bounded by `deadline`, but for the name of the host.
struct ClockAnswer {
  std::optional<ClockDifference> difference;
  std::string failure;  // why there is none
};
ClockAnswer ask_clock(const std::string& host, int port,
                      std::chrono::steady_clock::time_point deadline,
                      const WallClock& clock = system_nanoseconds);

/// From questions and answers; `sent` and `received` by this clock, the others by the asked one.
struct ClockSample {
  int64_t sent = 0, arrived = 0, answered = 0, received = 0;
};
ClockDifference clock_difference(const std::vector<ClockSample>& samples);

}  // namespace fleet::tool
