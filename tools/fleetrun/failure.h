#pragma once

#include <string>
#include <vector>

namespace fleet::launch {

/// Why an attempt ended: a rank that failed, a launcher that vanished, a user who stopped it. Nodes
/// send it to each other through the store.
///
///   Failure failure{.node = 1, .what = "rank 3 (pid 42) exited with code 1 after 2.0 s"};
///   Failure::from_json(failure.to_json()).what == failure.what;
struct Failure {
  int node = 0;
  std::string what;
  int exit_code = 1;
  bool crashed = false;                // outranks failures that follow from a lost peer
  bool restartable = true;             // false: trying again makes no sense
  bool stopped_by_user = false;        // not an error
  std::string log = {};                // path on its node
  std::vector<std::string> tail = {};  // the end of it
  bool echoed = false;                 // its output was on the screen of its node already

  std::string to_json() const;
  static Failure from_json(const std::string& text);
};

/// The failure that most probably caused the others: the first crash, else the first of all.
/// `failures` is in the order in which they were noticed and not empty.
const Failure& first_cause(const std::vector<Failure>& failures);

/// The whole message for the user at node `own_node`, without "error: ".
std::string explain(const Failure& failure, int own_node, size_t other_failures);

}  // namespace fleet::launch
