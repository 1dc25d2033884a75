// SPDX-License-Identifier: Apache-2.0
// fleet: tools around training, one command each. See docs/fleet.md.

#include "fleet/core/error.h"

#include "tools/fleet/commands.h"

int main(int argc, char** argv) { return fleet::run_main(fleet::tool::run, argc, argv); }
