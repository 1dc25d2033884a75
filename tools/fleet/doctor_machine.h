// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/fleet/finding.h"

namespace fleet::tool {

/// CPU, the kernels that Fleet and LibTorch choose on it, cores, memory, huge pages, OpenMP, memory
/// that ranks share, and the terminal. `root`: where /proc and /sys are, for tests.
std::vector<Finding> machine_findings(const std::string& root = "/");

// The rows by themselves.
Finding cpu_finding(const std::string& root);
Finding kernels_finding();
Finding bf16_finding();
Finding cores_finding(const std::string& root);
Finding memory_finding(const std::string& root);
Finding huge_pages_finding(const std::string& root);
Finding openmp_finding(const std::string& root);
Finding shared_memory_finding();
Finding terminal_finding();

}  // namespace fleet::tool
