// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace fleet::launch {

/// Two "hosts" on one machine: network namespaces with addresses 10.77.0.1 and 10.77.0.2, joined by
/// a virtual link. They go away with the object.
///
///   TwoHosts hosts;
///   if (const auto reason = hosts.refused(); !reason.empty()) GTEST_SKIP() << reason;
///   Launched first({"--ips=10.77.0.1,10.77.0.2", "hostname"}, hosts.on(0));
class TwoHosts {
 public:
  TwoHosts();
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  /// Why there are no hosts; empty when there are.
  const std::string& refused() const { return refused_; }
  /// What goes in front of a command to run it on that host, with a job key that both have.
  std::vector<std::string> on(int host) const;
  /// As if the link was unplugged: nothing arrives, and there is no error.
  bool unplug(int host) const;
  bool plug_in(int host) const;
  /// The network namespace's.
  std::string name(int host) const;
  /// The end of the link there.
  static std::string device(int host);
  /// Gives a device of that host an address and jumbo frames, and switches it on.
  bool connect(int host, const std::string& device, const std::string& address) const;
  /// That host sends so many Mbit/s at most on that device. False when it cannot be.
  bool limit_rate(int host, const std::string& device, int mbit) const;

 private:
  std::string set_up();

  std::string refused_;
};

}  // namespace fleet::launch
