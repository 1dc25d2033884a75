// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/offload/offload_file.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/profile/op_cost.h"
#include "fleet/memory/plan/profile/step_profile.h"

namespace fleet::tool {

/// What `fleet plan` knows: the presets of the applications, and the nets of bench/zoo.
std::vector<std::string_view> plan_model_names();

/// "seq 512", "224 x 224", or what a net of bench/zoo is; those have a size of their own.
std::string sample_text(const std::string& name, int64_t seq, int64_t image);

struct PlanModelOptions {
  std::string name = "bert-large";  // of plan_model_names()
  int64_t seq = 512;                // tokens, of a model of text
  int64_t image = 224;              // pixels each way, of a model of images
  bool is_bf16 = false;
  memory::MachineRates rates;
  memory::OffloadFile::Speed offload;
};

/// A model on meta tensors, with gradients and the state of Adam, and what its steps would take.
class PlanModel {
 public:
  explicit PlanModel(const PlanModelOptions& options);

  const memory::StepProfile& profile(int64_t samples);
  const memory::OffloadFile::Speed& offload() const { return offload_; }
  int64_t parameters() const { return parameters_; }
  /// Whether its forward names values; otherwise it cannot be cut at every block.
  bool has_checkpoints() { return !profile(1).checkpoints.empty(); }
  /// What is there between steps.
  int64_t fixed_bytes() const { return fixed_bytes_; }

 private:
  memory::BudgetAllocatorScope counting_{memory::BudgetAllocator::meta()};
  memory::MachineRates rates_;
  memory::OffloadFile::Speed offload_;
  std::function<torch::Tensor(int64_t samples)> loss_;
  std::vector<torch::Tensor> state_;  // of the optimizer
  std::map<int64_t, memory::StepProfile> profiles_;
  int64_t parameters_ = 0;
  int64_t fixed_bytes_ = 0;
};

/// What recompute can be told to do.
enum class RecomputeMode { kPlain, kEveryBlock, kPlanned, kPlannedWithOffload };
std::string_view name_of(RecomputeMode mode);

/// The plan by which a step of so many samples stays within the budget; none when there is none.
std::shared_ptr<const memory::Plan> plan_within(PlanModel& model, RecomputeMode mode,
                                                int64_t samples, int64_t budget);

struct LargestBatch {
  int64_t samples = 0;  // 0: not one fits
  std::shared_ptr<const memory::Plan> plan;

  double seconds_per_sample() const {
    return plan->predicted_seconds / static_cast<double>(samples);
  }
};
LargestBatch largest_batch(PlanModel& model, RecomputeMode mode, int64_t budget);

}  // namespace fleet::tool
