// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/parameter_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <unordered_map>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/process/huge_page.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

constexpr int64_t kAlignBytes = 64;

int64_t aligned(int64_t elements, int64_t element_size) {
  const int64_t step = std::max<int64_t>(1, kAlignBytes / element_size);
  return (elements + step - 1) / step * step;
}

// A view of `flat` with the parameter's own strides where they are dense (channels-last stays so).
torch::Tensor view_of(const torch::Tensor& flat, int64_t offset, const torch::Tensor& like) {
  const auto strides = like.is_non_overlapping_and_dense()
                           ? like.strides().vec()
                           : torch::empty(like.sizes(), torch::kMeta).strides().vec();
  return flat.as_strided(like.sizes(), strides, flat.storage_offset() + offset);
}

// Likewise, but no view to autograd: torch's zero_grad() detaches gradients in place, which views
// refuse.
torch::Tensor gradient_view_of(const torch::Tensor& flat, int64_t offset,
                               const torch::Tensor& like) {
  const auto view = view_of(flat, offset, like);
  return torch::empty({0}, flat.options())
      .set_(flat.storage(), view.storage_offset(), view.sizes(), view.strides());
}

// Zeros in huge pages where the system gives them on request: passes over several buffers at once
// miss the TLB less, worth some 3 % of an update.
torch::Tensor zeroed(int64_t numel, const torch::TensorOptions& options) {
  auto tensor = torch::empty({numel}, options);
  const auto bytes = static_cast<uintptr_t>(tensor.nbytes());
  if (tensor.device().is_cpu() && bytes >= 2 * kHugePage) {
    auto* const data = static_cast<std::byte*>(tensor.data_ptr());
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
    // A hint: where it is refused, pages are small.
    (void)::madvise(data + (first - begin), last - first, MADV_HUGEPAGE);
  }
  return tensor.zero_();
}

// Empty tensors have no address, sparse ones no storage.
bool same_memory(const torch::Tensor& a, const torch::Tensor& b) {
  return a.layout() == torch::kStrided && (a.numel() == 0 || a.data_ptr() == b.data_ptr());
}

}  // namespace

ParameterArena::ParameterArena(const ModelHandle& model, const ArenaOptions& options)
    : options_(options) {
  const auto parameters = model.parameters();
  lay_out(parameters);
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

bool ParameterArena::has_master(const torch::Tensor& parameter) const {
  if (!options_.working_dtype) return false;
  return parameter.scalar_type() == *options_.working_dtype ||
         (parameter.scalar_type() == torch::kFloat && parameter.dim() >= 2);
}

void ParameterArena::lay_out(const std::vector<NamedTensor>& parameters) {
  std::unordered_map<const void*, size_t> seen;
  std::vector<ArenaSpan> found;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.layout() != torch::kStrided) {
      throw Error("arena", format("parameter '{}' is not a dense tensor", name));
    }
    if (const auto it = seen.find(tensor.unsafeGetTensorImpl()); it != seen.end()) {
      if (it->second < found.size()) found[it->second].aliases.push_back(name);
      continue;
    }
    if (!tensor.requires_grad()) {
      seen.emplace(tensor.unsafeGetTensorImpl(), SIZE_MAX);
      frozen_.push_back({name, tensor});
      continue;
    }
    if (!torch::isFloatingType(tensor.scalar_type())) {
      throw Error("arena", format("parameter '{}' is {}, not a real floating-point type", name,
                                  c10::toString(tensor.scalar_type())));
    }
    seen.emplace(tensor.unsafeGetTensorImpl(), found.size());
    ArenaSpan span;
    span.name = name;
    span.parameter = tensor;
    span.numel = tensor.numel();
    found.push_back(std::move(span));
  }

  // float comes last, since the metadata lies in front of the last group.
  const auto key = [&](const ArenaSpan& span) {
    const auto dtype = has_master(span.parameter) ? torch::kFloat : span.parameter.scalar_type();
    return std::make_tuple(dtype == torch::kFloat ? 1 : 0, static_cast<int>(dtype),
                           span.parameter.device().str());
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const auto& a, const auto& b) { return key(a) < key(b); });
  std::optional<decltype(key(found[0]))> current;
  int64_t length = 0;
  const auto close_group = [&] {
    if (groups_.empty()) return;
    auto& group = groups_.back();
    group.last_span = spans_.size();
    const auto options = spans_[group.first_span].parameter.options().requires_grad(false);
    const auto dtype = static_cast<torch::ScalarType>(std::get<1>(*current));
    const AllocationTag tag(allocation::kParameters);
    group.values = zeroed(length, options.dtype(dtype));
    if (options_.working_dtype && dtype == torch::kFloat) {
      group.working = zeroed(length, options.dtype(*options_.working_dtype));
    }
    numel_ += length;
  };
  for (auto& span : found) {
    if (!current || *current != key(span)) {
      close_group();
      current = key(span);
      length = 0;
      groups_.emplace_back().first_span = spans_.size();
    }
    span.group = groups_.size() - 1;
    span.offset = length;
    // Working copies, of half the size, are aligned too.
    const int64_t element_size = options_.working_dtype ? 2 : span.parameter.element_size();
    length = aligned(length + span.numel, element_size);
    spans_.push_back(std::move(span));
  }
  close_group();
  numel_ = 0;
  for (const auto& span : spans_) numel_ += span.numel;
}

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
    span.gradient = gradient_view_of(groups_[span.group].gradients, span.offset, span.parameter);
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
  return aligned(shape.numel * size, 1);
}

}  // namespace

void ParameterArena::adopt() {
  const torch::NoGradGuard no_grad;
  metadata_length_ = aligned(metadata_numel(), sizeof(float));
  for (auto& span : spans_) {
    span.value = view_of(groups_[span.group].values, span.offset, span.parameter);
    span.value.copy_(span.parameter);
    if (has_master(span.parameter)) {
      span.working = view_of(groups_[span.group].working, span.offset, span.parameter);
      span.working.copy_(span.value);
    }
    span.parameter.set_data(span.working.defined() ? span.working : span.value);
  }
  const AllocationTag tag(allocation::kGradients);
  std::vector<torch::Tensor> buffers;
  for (const auto& shape : buffer_shapes(groups_, metadata_length_)) {
    buffers.push_back(zeroed(shape.numel, shape.options));
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
    state.push_back(zeroed(group.values.numel(), group.values.options().dtype(
                                                     is_double ? torch::kDouble : torch::kFloat)));
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
