// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/training_counters.h"

namespace fleet {

const FieldList& fields_of(const TrainingCounters*) {
  using C = TrainingCounters;
  static const FieldList list{
      .area = "snapshot",
      .fields = {
          field<&C::attempts>("attempts", "updates, skipped ones among them").at_least(0),
          field<&C::updates>("updates", "updates").at_least(0),
          field<&C::calls>("calls", "calls of minimize").at_least(0),
          field<&C::random_seed>("random_seed", "of random ops"),
          field<&C::total_seconds>("total_seconds", "of all calls").at_least(0).in_unit("s"),
          field<&C::lr>("lr", "learning rate").at_least(0),
          field<&C::loss_normalizer>("loss_normalizer", "weight of a usual update").at_least(0),
          field<&C::loss_terms>("loss_terms", "terms of a loss").at_least(0),
          field<&C::batch_samples>("batch_samples", "samples of this rank in an update")
              .at_least(-1)
              .in_unit("samples"),
          field<&C::first_sample>("first_sample", "their place in the global batch").at_least(-1),
          field<&C::micro_batch_limit>("micro_batch_limit", "largest micro-batch that fits")
              .at_least(0)
              .in_unit("samples"),
          field<&C::micro_batch_preferred>("micro_batch_preferred",
                                           "size of micro-batch that is quickest")
              .at_least(0)
              .in_unit("samples"),
          field<&C::scaler>("scaler", "loss scale of amp"),
      }};
  return list;
}

}  // namespace fleet
