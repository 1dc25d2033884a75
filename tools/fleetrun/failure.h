// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace fleet::launch {

/// Why an attempt ended: a failed rank, a lost launcher, or a stop by the user. Nodes exchange it
/// through the store.
///
///   Failure failure{.node = 1, .what = "rank 3 (pid 42) exited with code 1 after 2.0 s"};
///   Failure::from_json(failure.to_json()).what == failure.what;
struct Failure {
  int node = 0;
  std::string what;
  int exit_code = 1;
  bool crashed = false;                // takes precedence over failures that a lost peer causes
  bool caused_by_peer = false;         // its own error names another rank as the cause
  bool restartable = true;             // false: a restart would fail the same way
  bool stopped_by_user = false;        // not an error
  std::string log = {};                // path on its node
  std::vector<std::string> tail = {};  // the end of it
  bool shown = false;                  // its output was on its node's terminal already

  std::string to_json() const;
  static Failure from_json(const std::string& text);
};

/// The most probable root cause: a stop by the user, the first crash, the first failure that does
/// not name another rank as its cause, else the first. `failures` is in the order of detection and
/// not empty.
const Failure& first_cause(const std::vector<Failure>& failures);

/// Whether a rank's last error (log_tail.h) is about another rank: a call between ranks that failed
/// because of a lost rank, or a snapshot that another could not write.
bool names_another_rank(const std::string& error);

/// The complete message for the user at node `own_node`, without "error: ".
std::string explain(const Failure& failure, int own_node, size_t other_failures);

}  // namespace fleet::launch
