// SPDX-License-Identifier: Apache-2.0
// fleetrun: starts the ranks of a training job. See docs/fleetrun.md.

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

#include "tools/fleetrun/launcher.h"
#include "tools/fleetrun/process/resource_limits.h"

namespace {

using namespace fleet::launch;

int launch(int argc, char** argv) {
  const auto options = parse_options({argv + 1, argv + argc});
  try {
    auto program = find_program(options.program, options.program_args);
    const int nodes = options.node_count();
    // Before anything takes descriptors or processes; the other nodes' ranks are not known yet.
    raise_limits({.local_ranks = options.local_ranks(),
                  .world_size = nodes * options.local_ranks(),
                  .nodes = nodes,
                  .hosts_store = nodes == 1 || options.node_rank == 0});
    SignalInbox inbox;  // first of all: every thread must inherit its mask
    Watchdog watchdog;
    return Launcher(options, std::move(program), inbox, watchdog).run();
  } catch (const StartError& error) {
    fleet::print_error(error);
    return error.exit_code();
  } catch (const Interrupted& interrupted) {
    fleet::log::warn("fleetrun",
                     fleet::format("{}: no rank was started yet", signal_name(interrupted.signal)));
    return exit_code_of(interrupted.signal);
  }
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(launch, argc, argv); }
