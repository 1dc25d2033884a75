// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/program/training_log.h"

#include <cmath>
#include <utility>

#include <ATen/ops/tensor.h>

#include "fleet/comm/world.h"
#include "fleet/core/log.h"
#include "fleet/core/process/resident_memory.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/metrics/step_line.h"

namespace fleet {

void TrainingLog::begin_epoch(int64_t epoch, int64_t batch) {
  epoch_ = epoch;
  batch_ = batch;
  epoch_tally_ = {};
  begin_ = Clock::now();
}

void TrainingLog::step(const UpdateReport& report) {
  window_.loss_sum += report.own_loss * report.own_weight;
  window_.weight += report.own_weight;
  window_.samples += static_cast<double>(report.samples);
  window_.calls += 1;
  if (is_due()) log_step(report);
  ++batch_;
  if (report.in_window) return;
  close_window(!report.skipped);  // a skipped update has a loss that may not be finite
  ++updates_;
}

void TrainingLog::step(const UpdateReport& report, WeightedMean& acc1, WeightedMean& acc5) {
  if (is_due()) {
    const bool is_local = report.sync_every > 1 || report.synced;
    const bool is_shared = !is_local && !report.in_window;
    if (is_local && !std::exchange(has_explained_, true)) {
      log::info("train",
                "local SGD: the lines of batches are about rank 0 alone, those of epochs about all "
                "ranks");
    }
    if (is_shared) {
      for (auto* mean : {&acc1, &acc5}) {
        world()->all_reduce(mean->sums(), comm::ReduceOp::kSum, "the accuracy of a batch");
      }
    }
    log::plain(batch_line({.epoch = epoch_,
                           .batch = batch_,
                           .loss = is_shared ? report.loss : report.own_loss,
                           .acc1 = acc1.value(),
                           .acc5 = acc5.value()}));
  }
  acc1.reset();
  acc5.reset();
  step(report);
}

void TrainingLog::close_window(bool counts) {
  if (counts) {
    epoch_tally_.loss_sum += window_.loss_sum;
    epoch_tally_.weight += window_.weight;
    epoch_tally_.samples += window_.samples;
    epoch_tally_.calls += window_.calls;
  }
  window_ = {};
}

void TrainingLog::end_epoch(const std::optional<UpdateReport>& rest) {
  close_window(rest && !rest->skipped);
  end_epoch();
}

void TrainingLog::end_epoch() {
  const auto& own = epoch_tally_;
  const auto sums =
      torch::tensor({own.loss_sum, own.weight, own.samples, own.calls}, torch::kDouble);
  world()->all_reduce(sums, comm::ReduceOp::kSum, "what an epoch has seen");
  const auto* all = sums.const_data_ptr<double>();
  const double loss = all[1] > 0 ? all[0] / all[1] : 0;
  // `minimize(closure)` does not say how many samples it sees.
  const bool is_known = all[2] > 0 || all[3] == 0;
  const double count = is_known ? all[2] : all[3];
  const auto seen = is_known ? plural(std::llround(count), "sample")
                             : plural(std::llround(count), "call of minimize", "calls of minimize");
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  log::info("train", format("epoch {}: loss {:.5f}, {} in {:.1f} s, {:.1f} {}/s, memory {}", epoch_,
                            loss, seen, seconds, seconds > 0 ? count / seconds : 0,
                            is_known ? "samples" : "calls", byte_size_text(peak_resident_bytes())));
}

void TrainingLog::nothing_left(int64_t epochs) const {
  const auto limit =
      options_.max_updates > 0 ? format(", --max_updates {}", options_.max_updates) : "";
  log::info("train", format("nothing is left to train: {} {} made before, and --epochs {}{} {} for "
                            "no more",
                            plural(updates_, "update"), updates_ == 1 ? "was" : "were", epochs,
                            limit, limit.empty() ? "asks" : "ask"));
}

}  // namespace fleet
