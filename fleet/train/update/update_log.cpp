// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/update_log.h"

#include <cmath>
#include <utility>

#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

std::vector<std::string> names_of_ranks(const comm::Communicator& comm) {
  std::vector<std::string> names;
  if (comm.watch() == nullptr) return names;
  for (const auto& peer : comm.watch()->peers()) {
    names.push_back(format("rank {} ({}, pid {})", names.size(), peer.host, peer.pid));
  }
  return names;
}

}  // namespace

UpdateLog::UpdateLog(const TrainingStack& stack)
    : stack_(stack), stragglers_(stack.strategy.straggler_factor, names_of_ranks(*stack.comm)) {}

void UpdateLog::batch(const UpdateReport& report, BatchForm form) {
  if (has_said_batch_ || report.micro_batches == 0) return;
  has_said_batch_ = true;
  // A mean counts samples, and shared gradients bring the sum over all ranks with them.
  const bool is_agreed =
      !stack_.is_local() && report.own_weight == static_cast<double>(report.samples);
  const auto ranks = stack_.comm->size();
  const BatchArithmetic arithmetic{
      .form = form,
      .samples = report.samples,
      .global_samples = is_agreed ? std::llround(report.weight) : report.samples * ranks,
      .micro_batches = report.micro_batches,
      .k_steps = stack_.merge.calls_per_update(),
      .ranks = ranks};
  log::info("batch", arithmetic.text());
}

void UpdateLog::kept_apart() {
  const auto& arena = *stack_.arena;
  const auto first = arena.first_kept_apart();
  if (!first || std::exchange(has_said_apart_, true)) return;
  log::info("minimize",
            format("a backward outside of this optimizer's own calls reached {} of its {} "
                   "parameters (the first is '{}') while an update was being gathered; such "
                   "gradients are kept out of its updates",
                   arena.kept_apart(), arena.spans().size(), arena.spans()[*first].name));
}

void UpdateLog::stragglers(const std::vector<double>& seconds, int64_t updates) {
  for (const auto& line : stragglers_.observe(seconds, updates)) log::warn("straggler", line);
}

}  // namespace fleet
