#include "fleet/core/parameter_arena.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

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

// Empty tensors have no address, sparse ones no storage.
bool same_memory(const torch::Tensor& a, const torch::Tensor& b) {
  return a.layout() == torch::kStrided && (a.numel() == 0 || a.data_ptr() == b.data_ptr());
}

}  // namespace

ParameterArena::ParameterArena(const ModelHandle& model) {
  const auto parameters = model.parameters();
  lay_out(parameters);
  if (spans_.empty()) {
    throw Error("arena",
                format("the model has no trainable parameter ({} in all, every one frozen)",
                       parameters.size()),
                "pass the model that is to be trained, or set requires_grad");
  }
  adopt();
  landed_.assign(spans_.size(), false);
  for (size_t i = 0; i < spans_.size(); ++i) {
    hooks_.emplace_back(spans_[i].parameter, [this, i] { land(i); });
  }
}

ParameterArena::~ParameterArena() = default;

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

  // float comes last, since the head of floats lies in front of the last group.
  const auto key = [](const ArenaSpan& span) {
    const auto dtype = span.parameter.scalar_type();
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
    const auto& like = spans_[group.first_span].parameter;
    group.values = torch::zeros({length}, like.options().requires_grad(false));
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
    length = aligned(length + span.numel, span.parameter.element_size());
    spans_.push_back(std::move(span));
  }
  close_group();
  numel_ = 0;
  for (const auto& span : spans_) numel_ += span.numel;
}

void ParameterArena::adopt() {
  const torch::NoGradGuard no_grad;
  const int64_t head_length =
      aligned(kHeadScalars + static_cast<int64_t>(spans_.size()), sizeof(float));
  for (auto& group : groups_) {
    const bool carries_head =
        &group == &groups_.back() && group.values.scalar_type() == torch::kFloat;
    const int64_t before = carries_head ? head_length : 0;
    auto whole = torch::zeros({before + group.values.numel()}, group.values.options());
    group.gradients = whole.narrow(0, before, group.values.numel());
    if (carries_head) last_gradients_ = whole;
  }
  if (!last_gradients_.defined()) last_gradients_ = torch::zeros({head_length});
  head_ = last_gradients_.narrow(0, 0, kHeadScalars + static_cast<int64_t>(spans_.size()));

  for (auto& span : spans_) {
    const auto& group = groups_[span.group];
    span.value = view_of(group.values, span.offset, span.parameter);
    span.value.copy_(span.parameter);
    span.parameter.set_data(span.value);
    span.gradient = view_of(group.gradients, span.offset, span.parameter);
    span.parameter.mutable_grad() = torch::Tensor();
  }
}

std::vector<torch::Tensor> ParameterArena::make_state(torch::ScalarType dtype) const {
  std::vector<torch::Tensor> state;
  for (const auto& group : groups_) {
    state.push_back(torch::zeros({group.values.numel()}, group.values.options().dtype(dtype)));
  }
  return state;
}

torch::Tensor ParameterArena::head_and_gradients(int64_t elements) const {
  const int64_t head_length = groups_.back().values.scalar_type() == torch::kFloat
                                  ? last_gradients_.numel() - groups_.back().values.numel()
                                  : last_gradients_.numel();
  return last_gradients_.narrow(0, 0, head_length + elements);
}

void ParameterArena::set_listener(std::function<void(size_t)> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

void ParameterArena::begin_window() {
  for (auto& span : spans_) {
    if (!same_memory(span.parameter, span.value)) {
      throw Error("arena",
                  format("parameter '{}' no longer lies in the arena: its data was replaced "
                         "(set_data, .to(...), load) after the optimizer was made",
                         span.name),
                  "move, convert and load the model first, then make the optimizer; later copy "
                  "into parameters with copy_()");
    }
    span.parameter.mutable_grad() = torch::Tensor();
  }
  landed_.assign(spans_.size(), false);
}

void ParameterArena::land(size_t index) {
  const std::lock_guard lock(mutex_);
  auto& span = spans_[index];
  auto& gradient = span.parameter.mutable_grad();
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
  landed_[index] = true;
  if (listener_) listener_(index);
}

void ParameterArena::end_window() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < spans_.size(); ++i) {
    auto& gradient = spans_[i].parameter.mutable_grad();
    if (!landed_[i] && !gradient.defined()) {
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
