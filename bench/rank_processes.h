// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fleet::bench {

/// Starts this program again, once per rank, with a store of its own; the worst exit code.
int run_as_ranks(int ranks, char** argv);

/// The same with two ranks on two "hosts", network namespaces with no memory in common, joined by a
/// link of 100 Mbit/s and, where it can be had, 10 ms. Says why and returns 0 where such hosts
/// cannot be had. Ends within half an hour; the hosts go away also when it is interrupted.
int run_on_two_hosts(int ranks, char** argv);

}  // namespace fleet::bench
