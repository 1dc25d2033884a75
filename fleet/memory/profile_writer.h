#pragma once

#include <memory>
#include <vector>

#include <torch/types.h>

#include "fleet/memory/kept_value.h"
#include "fleet/memory/op_record.h"
#include "fleet/memory/step_profile.h"
#include "fleet/memory/tape_values.h"

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
  /// Autograd saved `kept`, which is in `tensor`.
  void saved(const OpRecord& record, const std::shared_ptr<KeptValue>& kept,
             const torch::Tensor& tensor);

 private:
  int block_of(int memory, int op);

  std::shared_ptr<Profiler> profiler_;
  TapeValues& values_;
  std::vector<int> watched_;  // memories that the user held when last seen
};

}  // namespace fleet::memory
