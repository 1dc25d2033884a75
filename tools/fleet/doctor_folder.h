// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <string_view>
#include <vector>

#include "tools/fleet/finding.h"

namespace fleet::tool {

enum class FolderUse { kSnapshots, kOffload };

/// "NFS", "ext4", ... of a statfs number; "type 0x..." of an unknown one.
std::string file_system_name(long type);
/// What differs there from a local disk, for such a use; `state` kOk where nothing does.
Finding file_system_finding(FolderUse use, long type);

/// Whether a run can write into `folder`, on what file system, with how much room, and at what
/// speed. One that is not there yet stands for the nearest folder above it that is. Files are
/// unnamed, so that nothing stays behind. Done by `deadline`, or a row says what hangs.
std::vector<Finding> folder_findings(FolderUse use, const std::filesystem::path& folder,
                                     std::chrono::steady_clock::time_point deadline);

}  // namespace fleet::tool
