// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/update_log.h"

#include <utility>

#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/core/log.h"
#include "fleet/core/log_subject.h"
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

void UpdateLog::batch(const WindowSamples& own, BatchForm form) {
  if (has_logged_batch_ || own.micro_batches == 0) return;
  has_logged_batch_ = true;
  const BatchArithmetic arithmetic{.form = form,
                                   .own = own,
                                   .global_samples = global_samples_,
                                   .k_steps = stack_.merge.calls_per_update(),
                                   .ranks = stack_.comm->size(),
                                   .is_local = is_local_};
  const log::SubjectScope subject(stack_.subject->text());
  log::info("batch", arithmetic.text());
}

void UpdateLog::calls() {
  is_local_ = stack_.is_local();
  batch({.micro_batches = stack_.merge.calls_per_update(), .is_known = false}, BatchForm::kCalls);
}

void UpdateLog::reduced(const ReducedMetadata& reduced) {
  global_samples_ = reduced.samples;
  is_local_ = reduced.ranks < stack_.comm->size();
}

void UpdateLog::discarded_gradients() {
  const auto& arena = *stack_.arena;
  const auto first = arena.first_discarded();
  if (!first || std::exchange(has_logged_discarded_, true)) return;
  const log::SubjectScope subject(stack_.subject->text());
  log::info("minimize",
            format("a backward outside of this optimizer's own calls reached {} of its {} "
                   "parameters (the first is '{}') while gradients were being accumulated; such "
                   "gradients are discarded",
                   arena.discarded(), arena.spans().size(), arena.spans()[*first].name));
}

void UpdateLog::stragglers(const std::vector<double>& seconds, int64_t updates) {
  for (const auto& line : stragglers_.observe(seconds, updates)) log::warn("straggler", line);
}

}  // namespace fleet
