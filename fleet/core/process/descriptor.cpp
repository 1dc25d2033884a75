// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/descriptor.h"

#include <unistd.h>

namespace fleet {

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace fleet
