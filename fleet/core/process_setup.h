#pragma once

#include <string>

namespace fleet {

/// Cores that this process may use.
int available_cores();

/// Sets threads (cores / `local_ranks` unless OMP_NUM_THREADS is set) and malloc for training.
/// Returns what it did, in a few words.
std::string set_up_process(int local_ranks);

}  // namespace fleet
