#pragma once

namespace fleet::bench {

/// Starts this program again, once per rank, with a store of its own; the worst exit code.
int run_as_ranks(int ranks, char** argv);

/// The same with two ranks on two "hosts": network namespaces joined by a cable, and no memory in
/// common. Says why and returns 0 where such hosts cannot be had. Ends within ten minutes; the
/// hosts go away also when it is interrupted.
int run_on_two_hosts(int ranks, char** argv);

}  // namespace fleet::bench
