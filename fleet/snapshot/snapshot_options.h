// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "fleet/core/options/options.h"

namespace fleet {

/// Flags of every training program (`parse_train_configs`); docs/snapshots.md.
struct SnapshotOptions {
  std::string snapshot_dir = {};  ///< empty: nothing is saved or resumed
  int64_t save_every = 0;         ///< updates; 0: at the end of each epoch
  int keep = 2;                   ///< number of newest snapshots to keep; 0: all

  bool operator==(const SnapshotOptions&) const = default;
};
const FieldList& fields_of(const SnapshotOptions*);

}  // namespace fleet
