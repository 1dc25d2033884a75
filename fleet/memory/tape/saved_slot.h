// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <c10/core/TensorImpl.h>
#include <torch/types.h>

#include "fleet/core/torch/interception.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/tape/kept_value.h"

namespace fleet::memory {

class Profiler;
class ReplayObserver;

/// One tensor that autograd saved: a KeptValue or a view of it, or the tensor itself where it came
/// from outside of the forward.
struct SavedSlot {
  explicit SavedSlot(const torch::Tensor& saved);
  ~SavedSlot();
  SavedSlot(const SavedSlot&) = delete;
  SavedSlot& operator=(const SavedSlot&) = delete;

  /// It was written to since it was saved.
  bool is_stale() const { return version_counter.current_version() != version; }
  /// For backward.
  torch::Tensor unpack() const;

  torch::Tensor tensor;  // until it is resolved
  const c10::TensorImpl* address;
  c10::VariableVersion version_counter;  // autograd's own
  uint32_t version;
  int save = -1;                    // of the op that ran
  const std::string* op = nullptr;  // its name
  int op_index = -1;
  struct View {
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;  // from that of `kept`
    bool is_conj = false, is_neg = false;
  };
  std::unique_ptr<View> view;  // what was saved of `kept`; null: all of it
  std::shared_ptr<KeptValue> kept;
  std::shared_ptr<Region> region;  // keeps alive what recomputes `kept`
  std::shared_ptr<Profiler> profiler;
  std::shared_ptr<ReplayObserver> replays;  // is told of what recomputes `kept`

 private:
  torch::Tensor read() const;
};

/// The hook object that autograd holds.
class SlotHandle final : public compat::SavedTensor {
 public:
  explicit SlotHandle(std::shared_ptr<const SavedSlot> slot) : slot_(std::move(slot)) {}
  torch::Tensor unpack() override { return slot_->unpack(); }

 private:
  std::shared_ptr<const SavedSlot> slot_;
};

}  // namespace fleet::memory
