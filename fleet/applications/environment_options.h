// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/core/options/options.h"

namespace fleet::applications {

/// For a trial of a program at a small size, without changing a line of it: what the variable
/// FLEET_<AREA>_OPTIONS holds as JSON takes the place of what the program says, and a line of the
/// log tells so. An option that there is not is an Error.
///
///   FLEET_BERT_OPTIONS='{"layers": 2, "hidden": 64, "heads": 2}' build/bin/bert_recompute
void apply_environment(OptionsRef options);

/// The same for a copy.
template <Reflected Options>
Options with_environment(Options options) {
  apply_environment(options);
  return options;
}

}  // namespace fleet::applications
