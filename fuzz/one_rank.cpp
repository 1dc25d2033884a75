// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/world.h"

// A reader that asks for the number of ranks: these programs have joined no job.
namespace fleet {

bool is_initialized() { return false; }
int worker_index() { return 0; }
int worker_num() { return 1; }

}  // namespace fleet
