// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/local_sgd_wire.h"

#include <tuple>

namespace fleet {
namespace {

enum Slot {
  kStep,
  kSteps,
  kWeight,
  kLossSum,
  kLr,
  kUpdates,
  kEnded,
  kInStep,
  kPresent,
  kStop,
  kComputeSeconds,
  kSlots
};

}  // namespace

LocalSgdWire::LocalSgdWire(int ranks, int64_t buffer_counters, int64_t buffer_sums)
    : ranks_(ranks),
      counters_(buffer_counters),
      sums_(buffer_sums),
      tensor_(torch::zeros({ranks * (kSlots + buffer_counters) + buffer_sums}, torch::kDouble)) {}

torch::Tensor LocalSgdWire::rows() const {
  const int64_t length = kSlots + counters_;
  return tensor_.narrow(0, 0, ranks_ * length).view({ranks_, length});
}

torch::Tensor LocalSgdWire::present() const {
  const auto all = rows();
  return all.index({all.select(1, kPresent) > 0});
}

torch::Tensor LocalSgdWire::counters(int rank) const {
  return rows().select(0, rank).narrow(0, kSlots, counters_);
}

torch::Tensor LocalSgdWire::buffer_sums() const {
  return tensor_.narrow(0, ranks_ * (kSlots + counters_), sums_);
}

torch::Tensor LocalSgdWire::largest_counters() const {
  return std::get<0>(present().narrow(1, kSlots, counters_).max(0));
}

void LocalSgdWire::write(int rank, const LocalSgdRow& row) {
  tensor_.zero_();
  auto* const slots = rows().select(0, rank).data_ptr<double>();
  slots[kStep] = static_cast<double>(row.step);
  slots[kSteps] = static_cast<double>(row.steps);
  slots[kWeight] = row.weight;
  slots[kLossSum] = row.loss_sum;
  slots[kLr] = row.lr;
  slots[kUpdates] = static_cast<double>(row.updates);
  slots[kEnded] = row.ended ? 1 : 0;
  slots[kInStep] = row.in_step ? 1 : 0;
  slots[kPresent] = 1;
  slots[kStop] = row.stop ? 1 : 0;
  slots[kComputeSeconds] = row.compute_seconds;
}

LocalSgdRows LocalSgdWire::read() const {
  const auto written = present();
  const auto sum_of = [&](Slot slot) { return written.select(1, slot).sum().item<double>(); };
  const auto most_of = [&](Slot slot) { return written.select(1, slot).max().item<double>(); };
  const auto all_have = [&](Slot slot) { return written.select(1, slot).min().item<double>() > 0; };
  const auto seconds = rows().select(1, kComputeSeconds).contiguous();
  return {.total = {.step = static_cast<int64_t>(most_of(kStep)),
                    .steps = static_cast<int64_t>(most_of(kSteps)),
                    .weight = sum_of(kWeight),
                    .loss_sum = sum_of(kLossSum),
                    .lr = most_of(kLr),
                    .updates = static_cast<int64_t>(most_of(kUpdates))},
          .all_ended = all_have(kEnded),
          .none_ended = most_of(kEnded) == 0,
          .all_in_step = all_have(kInStep),
          .any_stop = sum_of(kStop) > 0,
          .compute_seconds = {seconds.data_ptr<double>(), seconds.data_ptr<double>() + ranks_}};
}

}  // namespace fleet
