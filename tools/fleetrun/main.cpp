// SPDX-License-Identifier: Apache-2.0
// fleetrun: starts the ranks of a training job. See docs/fleetrun.md.

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

#include "tools/fleetrun/launcher.h"

namespace {

using namespace fleet::launch;

int launch(int argc, char** argv) {
  const auto options = parse_options({argv + 1, argv + argc});
  try {
    auto program = find_program(options.program, options.program_args);
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
