// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/data_loader.h"

namespace fleet {

// Most programs use this one: they need not compile it again.
template class DataLoader<Batch>;

}  // namespace fleet
