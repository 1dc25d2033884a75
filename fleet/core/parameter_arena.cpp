// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/parameter_arena.h"

#include <algorithm>
#include <utility>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/arena_buffer.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

// Empty tensors have no address, sparse ones no storage.
bool same_memory(const torch::Tensor& a, const torch::Tensor& b) {
  return a.layout() == torch::kStrided && (a.numel() == 0 || a.data_ptr() == b.data_ptr());
}

}  // namespace

ParameterArena::ParameterArena(const ModelHandle& model, const ArenaOptions& options)
    : options_(options) {
  const auto parameters = model.parameters();
  auto layout = lay_out(parameters, options);
  groups_ = std::move(layout.groups);
  spans_ = std::move(layout.spans);
  frozen_ = std::move(layout.frozen);
  numel_ = layout.numel;
  if (spans_.empty()) {
    throw Error("arena",
                format("the model has no trainable parameter ({} in all, every one frozen)",
                       parameters.size()),
                "pass the model that is to be trained, or set requires_grad");
  }
  adopt();
  is_ready_.assign(spans_.size(), false);
  versions_.assign(spans_.size(), 0);
  for (size_t i = 0; i < spans_.size(); ++i) {
    hooks_.emplace_back(
        spans_[i].parameter, [this, i] { arrive(i); }, [this, i] { on_gradient_ready(i); });
  }
}

ParameterArena::~ParameterArena() = default;

int64_t ParameterArena::metadata_numel() const {
  return kMetadataScalars + static_cast<int64_t>(spans_.size()) + options_.metadata_slots;
}

// One buffer per group; the metadata lies before the last one, or stands alone where that one is
// not float.
void ParameterArena::cut_gradients(const std::vector<torch::Tensor>& buffers) {
  last_gradients_ = buffers.back();
  metadata_ = last_gradients_.narrow(0, 0, metadata_numel());
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t length = groups_[g].values.numel();
    groups_[g].gradients = buffers[g].narrow(0, buffers[g].numel() - length, length);
  }
  for (auto& span : spans_) {
    span.gradient =
        gradient_view_of_buffer(groups_[span.group].gradients, span.offset, span.parameter);
    span.parameter.mutable_grad() = torch::Tensor();
  }
}

namespace {

struct BufferShape {
  int64_t numel = 0;
  torch::TensorOptions options;
};

// The buffers that `cut_gradients` wants.
std::vector<BufferShape> buffer_shapes(std::span<const ArenaGroup> groups,
                                       int64_t metadata_length) {
  std::vector<BufferShape> shapes;
  for (const auto& group : groups) shapes.push_back({group.values.numel(), group.values.options()});
  if (groups.back().values.scalar_type() == torch::kFloat) {
    shapes.back().numel += metadata_length;
  } else {
    shapes.push_back({metadata_length, torch::kFloat});
  }
  return shapes;
}

int64_t buffer_bytes(const BufferShape& shape) {
  const auto size = static_cast<int64_t>(shape.options.dtype().itemsize());
  return aligned_elements(shape.numel * size, 1);
}

}  // namespace

void ParameterArena::adopt() {
  const torch::NoGradGuard no_grad;
  metadata_length_ = aligned_elements(metadata_numel(), sizeof(float));
  for (auto& span : spans_) {
    span.value = view_of_buffer(groups_[span.group].values, span.offset, span.parameter);
    span.value.copy_(span.parameter);
    if (has_master(span.parameter, options_)) {
      span.working = view_of_buffer(groups_[span.group].working, span.offset, span.parameter);
      span.working.copy_(span.value);
    }
    span.parameter.set_data(span.working.defined() ? span.working : span.value);
  }
  const AllocationTag tag(allocation::kGradients);
  std::vector<torch::Tensor> buffers;
  for (const auto& shape : buffer_shapes(groups_, metadata_length_)) {
    buffers.push_back(zeroed_buffer(shape.numel, shape.options));
  }
  cut_gradients(buffers);
}

int64_t ParameterArena::gradient_bytes() const {
  int64_t bytes = 0;
  for (const auto& shape : buffer_shapes(groups_, metadata_length_)) bytes += buffer_bytes(shape);
  return bytes;
}

void ParameterArena::place_gradients(void* memory, const std::shared_ptr<void>& owner) {
  std::vector<torch::Tensor> buffers;
  auto* place = static_cast<char*>(memory);
  for (const auto& shape : buffer_shapes(groups_, metadata_length_)) {
    buffers.push_back(torch::from_blob(
        place, {shape.numel}, [owner](void*) {}, shape.options));
    place += buffer_bytes(shape);
  }
  cut_gradients(buffers);
}

std::vector<torch::Tensor> ParameterArena::make_state() const {
  std::vector<torch::Tensor> state;
  for (const auto& group : groups_) {
    const bool is_double = group.values.scalar_type() == torch::kDouble;
    state.push_back(
        zeroed_buffer(group.values.numel(),
                      group.values.options().dtype(is_double ? torch::kDouble : torch::kFloat)));
  }
  return state;
}

void ParameterArena::values_written() {
  const torch::NoGradGuard no_grad;
  for (const auto& span : spans_) {
    if (span.working.defined()) span.working.copy_(span.value);
    span.parameter.unsafeGetTensorImpl()->bump_version();
  }
}

void ParameterArena::refresh_masters() const {
  for (size_t i = 0; i < spans_.size(); ++i) refresh_masters(i);
}

void ParameterArena::refresh_masters(size_t index) const {
  const auto& span = spans_[index];
  if (!span.working.defined()) return;
  const torch::NoGradGuard no_grad;
  const auto written = span.value.to(span.working.scalar_type()).ne(span.working);
  if (!written.any().item<bool>()) return;
  span.value.copy_(torch::where(written, span.working.to(torch::kFloat), span.value));
}

torch::Tensor ParameterArena::metadata_and_gradients(int64_t elements) const {
  return last_gradients_.narrow(0, 0, metadata_length_ + elements);
}

void ParameterArena::set_on_gradient_ready(std::function<void(size_t)> on_ready) {
  const std::lock_guard lock(mutex_);
  on_ready_ = std::move(on_ready);
}

void ParameterArena::begin_window() {
  for (auto& span : spans_) {
    if (!same_memory(span.parameter, span.working.defined() ? span.working : span.value)) {
      throw Error("arena",
                  format("parameter '{}' no longer lies in the arena: its data was replaced "
                         "(set_data, .to(...), load) after the optimizer was made",
                         span.name),
                  "move, convert and load the model first, then make the optimizer; later copy "
                  "into parameters with copy_()");
    }
  }
  forget_window();
  is_open_ = true;
}

void ParameterArena::forget_window() noexcept {
  for (size_t i = 0; i < spans_.size(); ++i) {
    spans_[i].parameter.mutable_grad() = torch::Tensor();
    is_ready_[i] = false;
  }
  discarded_.clear();
  is_open_ = false;
  is_hidden_ = false;
  gradient_policy_ = GradientPolicy::kAccumulate;
}

void ParameterArena::set_gradient_policy(GradientPolicy policy) {
  const std::lock_guard lock(mutex_);
  gradient_policy_ = policy;
  const bool hide = policy == GradientPolicy::kReject;
  for (size_t i = 0; i < spans_.size(); ++i) {
    auto& gradient = spans_[i].parameter.mutable_grad();
    if (!is_ready_[i] || hide) {
      gradient = torch::Tensor();  // there may be one of another backward
    } else if (is_hidden_) {
      gradient = spans_[i].gradient;
    }
  }
  is_hidden_ = hide;
}

std::optional<size_t> ParameterArena::first_discarded() const {
  return discarded_.empty() ? std::nullopt : std::optional(*discarded_.begin());
}

bool ParameterArena::drop_cleared() {
  const std::lock_guard lock(mutex_);
  const torch::NoGradGuard no_grad;
  if (is_hidden_) return true;
  bool had = false, has = false;
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (!is_ready_[i]) continue;
    had = true;
    const auto& gradient = spans_[i].parameter.grad();
    const bool is_written = static_cast<int64_t>(spans_[i].gradient._version()) != versions_[i];
    if (!gradient.defined() || (is_written && !spans_[i].gradient.any().item<bool>())) {
      is_ready_[i] = false;
      spans_[i].parameter.mutable_grad() = torch::Tensor();
    } else {
      has = true;
    }
  }
  return has || !had;
}

// Autograd adds to the tensor that it finds in `grad()`: it must not find the window's.
void ParameterArena::arrive(size_t index) {
  const std::lock_guard lock(mutex_);
  if (!is_open_ || gradient_policy_ == GradientPolicy::kAccumulate) return;
  spans_[index].parameter.mutable_grad() = torch::Tensor();
}

void ParameterArena::on_gradient_ready(size_t index) {
  const std::lock_guard lock(mutex_);
  if (!is_open_) return;  // between two windows the model is as torch has it
  auto& span = spans_[index];
  auto& gradient = span.parameter.mutable_grad();
  if (gradient_policy_ != GradientPolicy::kAccumulate) {
    gradient = is_ready_[index] && !is_hidden_ ? span.gradient : torch::Tensor();
    discarded_.insert(index);
    if (gradient_policy_ == GradientPolicy::kDiscard) return;
    throw Error("arena",
                format("a backward inside the loss closure reached parameter '{}', and its "
                       "gradient would not be part of the update",
                       span.name),
                "add that loss to the one that the closure returns, or take gradients with "
                "torch::autograd::grad");
  }
  if (!gradient.defined()) return;
  if (!same_memory(gradient, span.gradient)) {
    const torch::NoGradGuard no_grad;
    if (gradient.layout() == torch::kStrided) {
      span.gradient.copy_(gradient);
    } else {
      span.gradient.zero_().add_(gradient);
    }
    gradient = span.gradient;
  }
  versions_[index] = static_cast<int64_t>(span.gradient._version());
  is_ready_[index] = true;
  if (on_ready_) on_ready_(index);
}

void ParameterArena::add_gradient(size_t index, const torch::Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  const torch::NoGradGuard no_grad;
  auto& span = spans_[index];
  if (is_ready_[index]) {
    span.gradient.add_(gradient);
  } else {
    span.gradient.copy_(gradient);
    span.parameter.mutable_grad() = span.gradient;
  }
  versions_[index] = static_cast<int64_t>(span.gradient._version());
  is_ready_[index] = true;
}

void ParameterArena::end_window() {
  const torch::NoGradGuard no_grad;
  is_open_ = false;
  for (size_t i = 0; i < spans_.size(); ++i) {
    auto& gradient = spans_[i].parameter.mutable_grad();
    if (!is_ready_[i] && !gradient.defined()) {
      spans_[i].gradient.zero_();
      gradient = spans_[i].gradient;
    }
    if (!gradient.defined() || !same_memory(gradient, spans_[i].gradient)) {
      throw Error("arena",
                  format("the gradient of '{}' was replaced: grad() is {}, not the arena's view",
                         spans_[i].name, gradient.defined() ? "another tensor" : "undefined"),
                  "change gradients in place (grad().mul_(...)) instead of assigning to grad()");
    }
  }
}

}  // namespace fleet
