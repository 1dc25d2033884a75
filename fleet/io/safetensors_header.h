// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "fleet/io/safetensors.h"

namespace fleet::detail {

/// The format's own limit.
inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  SafetensorsMetadata metadata;
};

/// Reads and checks the JSON of a header; `data_begin` and `data_bytes` say where the data lie in
/// the file. `path` is for errors only.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::filesystem::path& path,
                                           int64_t data_begin, int64_t data_bytes);

/// Bytes of a tensor; nothing when they are more than a 63-bit number counts.
std::optional<int64_t> tensor_bytes(torch::ScalarType dtype, const std::vector<int64_t>& shape);

}  // namespace fleet::detail
