// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#include "fleet/core/text/format.h"

#include <fmt/format.h>

namespace fleet {

std::string vformat(fmt::string_view text, fmt::format_args args) {
  return fmt::vformat(text, args);
}

}  // namespace fleet
