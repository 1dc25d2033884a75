// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/core/error.h"

namespace fleet {

/// A failure that only a restart of all ranks can fix. `run_main` turns it into exit code 75
/// ("temporary failure" in sysexits.h), on which fleetrun ends the other ranks too, even with
/// --elastic.
class RestartNeeded : public Error {
 public:
  static constexpr int kExitCode = 75;
  using Error::Error;
};

}  // namespace fleet
