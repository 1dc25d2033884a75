// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/tape/kept_value.h"

#include <array>
#include <atomic>
#include <string_view>
#include <utility>

#include <c10/util/StringUtil.h>

#include "fleet/core/error.h"
#include "fleet/core/tensor_memory.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/replay/replay_rules.h"
#include "fleet/memory/tape/copy_on_write.h"
#include "fleet/memory/tape/tensor_storage.h"

namespace fleet::memory {
namespace {

std::atomic<int64_t> g_copies{0};

constexpr std::string_view name_of(KeptValue::State state) {
  constexpr std::array<std::string_view, 6> kNames = {"shared",     "owned",     "evicted",
                                                      "recomputed", "offloaded", "lost"};
  return kNames[static_cast<size_t>(state)];
}

bool is_legal(KeptValue::State from, KeptValue::State to) {
  using enum KeptValue::State;
  switch (from) {
    case kShared:
      return to == kOwned || to == kOffloaded || to == kEvicted || to == kLost;
    case kOwned:
      return to == kOffloaded || to == kEvicted;
    case kEvicted:
      return to == kRecomputed || to == kShared;
    case kRecomputed:
      return to == kEvicted || to == kOffloaded;
    case kOffloaded:
      return to == kOwned || to == kRecomputed || to == kShared;
    case kLost:
      return false;
  }
  return false;
}

}  // namespace

KeptValue::KeptValue(const torch::Tensor& tensor, const Origin& origin)
    : tensor_(tensor.tensor_data()),
      origin_(origin),
      dtype_(tensor.scalar_type()),
      version_(tensor._version()),
      is_strided_(is_strided(tensor)) {
  if (!is_strided_) return;
  sizes_ = {tensor.sizes().begin(), tensor.sizes().end()};
  strides_ = {tensor.strides().begin(), tensor.strides().end()};
  offset_ = tensor.storage_offset();
  bytes_ = static_cast<int64_t>(tensor.nbytes());
  is_conj_ = tensor.is_conj();
  is_neg_ = tensor.is_neg();
}

KeptValue::~KeptValue() { unlist(); }

bool KeptValue::has_geometry_of(const torch::Tensor& tensor) const {
  if (!is_strided_ || !is_strided(tensor)) return is_strided_ == is_strided(tensor);
  return tensor.sizes() == c10::IntArrayRef(sizes_) &&
         tensor.strides() == c10::IntArrayRef(strides_) && tensor.storage_offset() == offset_ &&
         tensor.is_conj() == is_conj_ && tensor.is_neg() == is_neg_;
}

bool KeptValue::is_intact() const {
  return is_resident() && state_ != State::kLost &&
         (state_ != State::kShared || tensor_._version() == version_);
}

void KeptValue::check_version() const {
  if (is_intact()) return;
  throw Error("recompute",
              format("a tensor {} that a recomputation reads was changed in place after the "
                     "forward: it is at version {}, and was used at version {}",
                     c10::str(c10::IntArrayRef(sizes_)), tensor_._version(), version_),
              "change it after backward, or a copy of it");
}

torch::Tensor KeptValue::get() {
  if (is_offloaded()) fetch();
  if (!is_resident()) {
    const auto region = this->region();
    FLEET_ASSERT(region, "a value was evicted and no region can recompute it");
    region->recompute(shared_from_this());
    FLEET_ASSERT(is_resident(), "a replay did not recompute a value of its region");
  }
  check_version();
  return tensor_;
}

torch::Tensor KeptValue::read() {
  if (!is_resident()) get();
  auto tensor = tensor_;
  if (state_ != State::kRecomputed) return tensor;
  // A graph that stays keeps its regions, so that nothing would free their inputs.
  if (is_replay_input_ && !compat::current_backward_keeps_graph()) return tensor;
  if (--reads_left_ <= 0) evict();
  return tensor;
}

void KeptValue::become_replay_input() {
  is_replay_input_ = true;
  list_as_replay_input();
}

void KeptValue::list_as_replay_input() {
  if (!is_replay_input_ || listed_in_ || state_ != State::kShared) return;
  listed_in_ = compat::storage_written_to(tensor_);
  if (listed_in_) ReplayInputs::get().add(listed_in_, shared_from_this());
}

void KeptValue::unlist() {
  if (const auto* storage = std::exchange(listed_in_, nullptr)) {
    ReplayInputs::get().remove(storage, this);
  }
}

void KeptValue::move_to(State next) {
  if (state_ == next) return;
  FLEET_ASSERT(is_legal(state_, next),
               format("a kept value that is {} cannot become {}", name_of(state_), name_of(next)));
  state_ = next;
}

void KeptValue::own(torch::Tensor tensor) {
  unlist();
  tensor_ = std::move(tensor);
}

void KeptValue::release() {
  unlist();
  tensor_.reset();
}

void KeptValue::offload(std::shared_ptr<OffloadedStorage> offloaded) {
  check_version();
  move_to(State::kOffloaded);
  offloaded_ = std::move(offloaded);
  release();
}

void KeptValue::fetch() {
  const compat::NoInterceptScope unrecorded;
  const torch::NoGradGuard no_grad;
  auto tensor = torch::empty({0}, dtype_).set_(offloaded_->fetch(), offset_, sizes_, strides_);
  tensor._set_conj(is_conj_);
  tensor._set_neg(is_neg_);
  move_to(State::kOwned);
  own(std::move(tensor));
}

void KeptValue::evict() {
  if (state_ == State::kLost) return;
  move_to(offloaded_ ? State::kOffloaded : State::kEvicted);
  release();
}

void KeptValue::take_back(const torch::Tensor& tensor) {
  move_to(State::kShared);
  release();
  tensor_ = tensor.tensor_data();
  version_ = tensor._version();
  list_as_replay_input();
}

void KeptValue::refill(const torch::Tensor& tensor) {
  // Its offset in its storage may differ: a replay can start from a copy of a view.
  const bool is_as_it_was = !is_strided_ || origin_.op >= 0 ||
                            (!origin_.is_view && tensor.sizes() == c10::IntArrayRef(sizes_) &&
                             tensor.strides() == c10::IntArrayRef(strides_) &&
                             tensor.is_conj() == is_conj_ && tensor.is_neg() == is_neg_);
  auto same = is_as_it_was ? tensor.tensor_data()
                           : compat::strided_view(tensor, sizes_, strides_,
                                                  tensor.storage_offset() + origin_.from_value,
                                                  is_conj_, is_neg_)
                                 .tensor_data();
  move_to(State::kRecomputed);
  own(std::move(same));
  reads_left_ = readers_;
}

void KeptValue::check_same(const torch::Tensor& tensor, const std::string& op) const {
  if (tensor.scalar_type() == dtype_ && tensor.sizes() == c10::IntArrayRef(sizes_)) return;
  throw Error(
      "recompute",
      format("{} saved a tensor {} {} for backward when it was replayed, and {} {} in the forward",
             op, c10::toString(tensor.scalar_type()), c10::str(tensor.sizes()),
             c10::toString(dtype_), c10::str(c10::IntArrayRef(sizes_))),
      kHiddenState);
}

void KeptValue::copy_to_own_memory() {
  if (state_ == State::kLost) return;
  const torch::NoGradGuard no_grad;
  if (!is_strided_) {
    own(tensor_.clone());
  } else {
    // Every element from the first to the last, so that strides stay whatever they are.
    const auto range = range_of(tensor_);
    const auto elements = (range.end - range.begin) / static_cast<int64_t>(tensor_.element_size());
    const auto flat =
        compat::strided_view(tensor_, {elements}, {1}, tensor_.storage_offset(), false, false)
            .clone();
    own(compat::strided_view(flat, sizes_, strides_, 0, is_conj_, is_neg_).tensor_data());
  }
  if (state_ != State::kRecomputed) move_to(State::kOwned);
  ++g_copies;
}

void KeptValue::set_lost() {
  move_to(State::kLost);
  unlist();
}

int64_t KeptValue::copies() { return g_copies; }

}  // namespace fleet::memory
