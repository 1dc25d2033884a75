// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fleet {

/// What `--version` prints: "bert 0.1.0 (LibTorch 2.15.0)", and on a line of its own the
/// instruction set that LibTorch has chosen for this CPU.
std::string version_text(std::string_view program);

}  // namespace fleet
