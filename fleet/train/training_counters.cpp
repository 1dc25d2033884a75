#include "fleet/train/training_counters.h"

namespace fleet {

const FieldList& fields_of(const TrainingCounters*) {
  using C = TrainingCounters;
  static const FieldList list{
      .area = "snapshot",
      .fields = {
          field<&C::attempts>("attempts", "updates, skipped ones among them").at_least(0),
          field<&C::updates>("updates", "updates").at_least(0),
          field<&C::calls>("calls", "calls of minimize").at_least(0),
          field<&C::total_seconds>("total_seconds", "of all calls").at_least(0).in_unit("s"),
          field<&C::lr>("lr", "learning rate").at_least(0),
          field<&C::usual_weight>("usual_weight", "what an update weighs as a rule").at_least(0),
          field<&C::loss_terms>("loss_terms", "terms of a loss").at_least(0),
          field<&C::part_limit>("part_limit", "largest part of a batch that fits")
              .at_least(0)
              .in_unit("samples"),
          field<&C::part_preferred>("part_preferred", "part of a batch that is quickest")
              .at_least(0)
              .in_unit("samples"),
          field<&C::scaler>("scaler", "loss scale of amp"),
      }};
  return list;
}

}  // namespace fleet
