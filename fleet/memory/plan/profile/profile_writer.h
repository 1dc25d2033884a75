// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/tape/kept_value.h"
#include "fleet/memory/tape/op_record.h"
#include "fleet/memory/tape/tape_values.h"

namespace fleet::memory {

/// Tells a Profiler what the ops of a tape make, read, write and save.
class ProfileWriter {
 public:
  ProfileWriter(std::shared_ptr<Profiler> profiler, TapeValues& values)
      : profiler_(std::move(profiler)), values_(values) {}
  const std::shared_ptr<Profiler>& profiler() const { return profiler_; }

  // For every op, in this order.
  void starts_from(const OpRecord& record, int value, const std::shared_ptr<KeptValue>& kept);
  void op_begins(const OpRecord& record);
  void op_ended(const OpRecord& record, const std::vector<torch::Tensor>& arguments);
  /// Autograd saved `tensor`, which `kept` holds, inside this op; null: after the last one.
  void saved(const OpRecord* record, const std::shared_ptr<KeptValue>& kept,
             const torch::Tensor& tensor);

 private:
  int block_of(int storage, int op);
  void add_outside(int storage, int op);

  std::shared_ptr<Profiler> profiler_;
  TapeValues& values_;
  std::vector<int> watched_;  // storage ids that were held when last seen
};

}  // namespace fleet::memory
