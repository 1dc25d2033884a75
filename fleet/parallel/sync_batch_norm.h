// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "fleet/comm/communicator.h"
#include "fleet/core/torch/interception.h"

namespace fleet {

/// While it lives, every batch norm that this thread runs in training mode, `ops::batch_norm_relu`
/// among them, takes its statistics
/// over the samples of all ranks, each rank weighted by its number; the model needs no change.
/// Running statistics stay the same on all ranks. Costs one small all-gather per layer forward and
/// one all-reduce backward.
///
/// All ranks must run the same layers, with at least one sample each. `comm` must be a group of its
/// own (Communicator::duplicate): its calls mix with the gradients' in an order of their own.
///
///   SyncBatchNormScope scope(comm);
///   auto loss = net->forward(x);   // backward may run after the scope
class SyncBatchNormScope {
 public:
  explicit SyncBatchNormScope(std::shared_ptr<comm::Communicator> comm);
  ~SyncBatchNormScope();
  SyncBatchNormScope(const SyncBatchNormScope&) = delete;
  SyncBatchNormScope& operator=(const SyncBatchNormScope&) = delete;

 private:
  std::shared_ptr<comm::Communicator> previous_;
  std::optional<compat::InterceptScope> intercept_;
};

}  // namespace fleet
