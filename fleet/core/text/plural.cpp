// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/text/plural.h"

#include "fleet/core/text/format.h"

namespace fleet {

std::string plural(int64_t count, std::string_view noun, std::string_view nouns) {
  if (count == 1) return format("1 {}", noun);
  return nouns.empty() ? format("{} {}s", count, noun) : format("{} {}", count, nouns);
}

}  // namespace fleet
