// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/forward_scopes.h"

#include <utility>

#include "fleet/core/log.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/format.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/update/training_stack.h"

namespace fleet {

using Restart = MemoryStrategy::Forward::Restart;

ForwardScopes::ForwardScopes(TrainingStack& stack, const MicroBatch& micro_batch)
    : stack_(stack),
      samples_(micro_batch.samples()),
      random_(std::in_place, stack.random_position(micro_batch)),
      fast_ops_(std::in_place, stack.fast_ops.get()),
      sync_batch_norm_(std::in_place, stack.norm_comm),
      autocast_(std::in_place, stack.amp ? &stack.amp->autocast() : nullptr),
      budget_(std::in_place, stack.memory.get()),
      recorded_(std::in_place, stack.memory.get(), samples_,
                micro_batch.can_restart ? Restart::kHere : Restart::kNever) {}

void ForwardScopes::leave() {
  if (random_) seconds_ = seconds_since(begin_);
  recorded_.reset();
  budget_.reset();
  autocast_.reset();
  sync_batch_norm_.reset();
  fast_ops_.reset();
  if (random_) stack_.window_samples += random_->samples();
  random_.reset();
}

void ForwardScopes::end() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (recorded_) recorded_->finish();
  leave();
  if (!stack_.fast_ops || std::exchange(stack_.has_logged_fast_ops, true)) return;
  log::info("fast_ops", format("the first forward: {}", stack_.fast_ops->summary()));
}

void ForwardScopes::end_noexcept() noexcept {
  try {
    end();
  } catch (...) {
    leave();
    error_ = std::current_exception();
  }
}

// The eager form holds them while the user's own forward runs.
DistributedOptimizer::ForwardScope::ForwardScope(std::shared_ptr<ForwardScopes> scopes)
    : scopes_(std::move(scopes)) {}
DistributedOptimizer::ForwardScope::ForwardScope(ForwardScope&&) noexcept = default;
DistributedOptimizer::ForwardScope::~ForwardScope() {
  if (scopes_) scopes_->end_noexcept();
}

}  // namespace fleet
