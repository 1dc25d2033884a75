// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_options.h"

namespace fleet {

const FieldList& fields_of(const SnapshotOptions*) {
  using S = SnapshotOptions;
  static const FieldList list{
      .area = "config",
      .fields = {
          field<&S::snapshot_dir>("snapshot_dir",
                                  "folder of snapshots, which the training resumes from"),
          field<&S::save_every>("save_every",
                                "updates between two snapshots; 0: at the end of each epoch")
              .at_least(0)
              .in_unit("updates"),
          field<&S::keep>("keep", "number of newest snapshots to keep; 0: all").at_least(0),
      }};
  return list;
}

}  // namespace fleet
