// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace fleet {

/// An environment variable that is 0 or 1; unset or empty: `otherwise`. Throws UsageError for
/// anything else, with `meaning` as the fix.
bool environment_switch(const char* name, bool otherwise, std::string_view meaning);

}  // namespace fleet
