// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/tape/saved_slot.h"

#include "fleet/core/error.h"
#include "fleet/core/tensor_memory.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/plan/profile/profiler.h"

namespace fleet::memory {

SavedSlot::SavedSlot(const torch::Tensor& saved)
    : tensor(saved.tensor_data()),
      address(saved.unsafeGetTensorImpl()),
      version_counter(address->version_counter()),
      version(version_counter.current_version()) {}

SavedSlot::~SavedSlot() {
  if (kept) kept->remove_reader();
}

torch::Tensor SavedSlot::unpack() const {
  // With a hook, autograd does not check this.
  if (is_stale()) {
    throw Error("backward",
                format("one of the variables needed for gradient computation has been modified by "
                       "an inplace operation: what {} saved is at version {}, and version {} is "
                       "needed",
                       op ? *op : "a custom function", version_counter.current_version(), version),
                "use the op that returns a new tensor instead, or clone() before it");
  }
  if (region && region->pool()) region->pool()->reached(op_index);
  if (!profiler && !replays) return read();
  struct ObserverScope {
    explicit ObserverScope(ReplayObserver* observer) : before(ReplayObserver::exchange(observer)) {}
    ~ObserverScope() { ReplayObserver::exchange(before); }
    ReplayObserver* before;
  } const observed(profiler ? profiler.get() : replays.get());
  if (!profiler) return read();
  profiler->unpacking();
  auto result = read();
  const bool is_handed_out = kept && !kept->is_resident();
  profiler->unpacked(op_index, is_handed_out ? kept->bytes() : 0);
  return result;
}

torch::Tensor SavedSlot::read() const {
  if (!kept) return tensor;
  auto whole = kept->read();
  if (!view) return whole;
  return compat::strided_view(whole, view->sizes, view->strides,
                              whole.storage_offset() + view->offset, view->is_conj, view->is_neg);
}

}  // namespace fleet::memory
