// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "fleet/core/options/options.h"

namespace fleet {

/// Sets what `text` names and leaves the rest; `//` comments are allowed.
///
/// Unknown, repeated and ill-typed keys and values out of their limits are reported together in one
/// Error, which leaves `options` as it was. `source` is what the error calls the text.
void read_json(OptionsRef options, std::string_view text, std::string_view source = "the text");

/// `read_json` of a whole file.
void load_json(OptionsRef options, const std::string& file);

/// What differs from `defaults`, nested as the structs are, in the order of their fields. Reading
/// it into a copy of `defaults` gives `options` again, to the last bit.
std::string write_json(OptionsView options, OptionsView defaults);

}  // namespace fleet
