#include "fleet/train/training_log.h"

#include "fleet/comm/world.h"
#include "fleet/core/byte_size.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/resident_memory.h"
#include "fleet/metrics/step_line.h"

namespace fleet {

void TrainingLog::begin_epoch(int64_t epoch, int64_t batch) {
  epoch_ = epoch;
  batch_ = batch;
  loss_.reset();
  begin_ = Clock::now();
}

void TrainingLog::step(const UpdateReport& report) {
  // A skipped update has a loss that may not be finite.
  if (!report.skipped) loss_.add(report.loss, report.weight);
  if (is_due()) log_step(report);
  ++batch_;
  ++updates_;
}

void TrainingLog::step(const UpdateReport& report, WeightedMean& acc1, WeightedMean& acc5) {
  if (is_due()) {
    for (auto* mean : {&acc1, &acc5}) {
      world()->all_reduce(mean->sums(), comm::ReduceOp::kSum, "the accuracy of a batch");
    }
    log::plain(batch_line({.epoch = epoch_,
                           .batch = batch_,
                           .loss = report.loss,
                           .acc1 = acc1.value(),
                           .acc5 = acc5.value()}));
  }
  acc1.reset();
  acc5.reset();
  step(report);
}

void TrainingLog::end_epoch() {
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  log::info("train", format("epoch {}: loss {:.5f}, {:.0f} samples in {:.1f} s, {:.1f} samples/s, "
                            "memory {}",
                            epoch_, loss_.value(), loss_.weight(), seconds,
                            loss_.weight() / seconds, byte_size_text(peak_resident_bytes())));
}

}  // namespace fleet
