// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fleet {

/// Bytes of a text like "12GiB", "1.5 GB" or "4096": B, KB, MB, GB, TB count in thousands, KiB to
/// TiB in 1024s; nothing when the text is not such a size.
std::optional<int64_t> byte_size(std::string_view text);

/// A number below 1 MiB without a unit, such as "60": it was hardly meant in bytes.
bool lacks_unit(std::string_view text);

/// The other way, for people: "512 B", "24.04 MiB".
std::string byte_size_text(int64_t bytes);

}  // namespace fleet
