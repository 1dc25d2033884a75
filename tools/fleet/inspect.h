// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace fleet::tool {

/// Prints name, type, shape and bytes of every tensor, and the metadata; reads the header alone.
void print_tensors(const std::filesystem::path& path);

}  // namespace fleet::tool
