// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fleet {

/// "1 sample", "3 samples": a number with its noun, for messages. A noun whose plural is not its
/// name with an s gives both: plural(n, "batch", "batches").
std::string plural(int64_t count, std::string_view noun, std::string_view nouns = {});

}  // namespace fleet
