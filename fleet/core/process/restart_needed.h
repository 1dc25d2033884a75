// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/core/error.h"

namespace fleet {

/// What only a new start of all ranks can mend. `run_main` turns it into exit code 75 ("temporary
/// failure" in sysexits.h), on which fleetrun ends the other ranks too, even with --elastic.
class RestartNeeded : public Error {
 public:
  static constexpr int kExitCode = 75;
  using Error::Error;
};

}  // namespace fleet
