// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace fleet {

/// Cores that this process may use: of its affinity, and no more than its control groups leave it
/// time for, rounded up. `root`: where /proc and /sys are, for tests.
int available_cores(const std::string& root = "/");

/// GOMP_SPINCOUNT of a rank, with OMP_WAIT_POLICY=passive for other OpenMP libraries than GNU's,
/// which LibTorch brings. By default its threads spin 300,000 times, some milliseconds, before they
/// sleep: where others need the cores, a thread that has work does not get one meanwhile. So many
/// bridge the time between two parallel loops of a step; 0 costs a fifth of a small net's step.
inline constexpr const char* kSpinCount = "3000";

/// Whether the environment says how OpenMP's threads wait for each other: OMP_WAIT_POLICY or
/// GOMP_SPINCOUNT. OpenMP reads them when it is loaded, before main.
bool is_wait_policy_chosen();

/// What a program should be told where `threads` of it and `load`, the number of other threads that
/// want to run, are more than `cores`: OpenMP's threads spin while they wait, and take the cores
/// from those that have work. Empty where there is room, or the environment has chosen.
std::string wait_policy_advice(int threads, int cores, double load);

/// OMP_NUM_THREADS, or the first of its list; nothing where it is not set. A UsageError where it is
/// no number of threads: OpenMP would ignore it.
std::optional<int> chosen_threads();

/// Sets threads (cores / `local_ranks` unless OMP_NUM_THREADS is set) and malloc for training.
/// Returns what it did, in a few words. Gives wait_policy_advice where cores are shared.
std::string set_up_process(int local_ranks);

}  // namespace fleet
