// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/arena_layout.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/arena_buffer.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

// Spans without a place yet, each tensor once; frozen parameters are added to `layout`.
std::vector<ArenaSpan> trainable_spans(const std::vector<NamedTensor>& parameters,
                                       ArenaLayout& layout) {
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
      layout.frozen.push_back({name, tensor});
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
  return found;
}

}  // namespace

bool has_master(const torch::Tensor& parameter, const ArenaOptions& options) {
  if (!options.working_dtype) return false;
  return parameter.scalar_type() == *options.working_dtype ||
         (parameter.scalar_type() == torch::kFloat && parameter.dim() >= 2);
}

ArenaLayout lay_out(const std::vector<NamedTensor>& parameters, const ArenaOptions& options) {
  ArenaLayout layout;
  auto found = trainable_spans(parameters, layout);
  // float comes last, since the metadata lies in front of the last group.
  const auto key = [&](const ArenaSpan& span) {
    const auto dtype =
        has_master(span.parameter, options) ? torch::kFloat : span.parameter.scalar_type();
    return std::make_tuple(dtype == torch::kFloat ? 1 : 0, static_cast<int>(dtype),
                           span.parameter.device().str());
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const auto& a, const auto& b) { return key(a) < key(b); });
  std::optional<decltype(key(found[0]))> current;
  int64_t length = 0;
  const auto close_group = [&] {
    if (layout.groups.empty()) return;
    auto& group = layout.groups.back();
    group.last_span = layout.spans.size();
    const auto tensor_options =
        layout.spans[group.first_span].parameter.options().requires_grad(false);
    const auto dtype = static_cast<torch::ScalarType>(std::get<1>(*current));
    const AllocationTag tag(allocation::kParameters);
    group.values = zeroed_buffer(length, tensor_options.dtype(dtype));
    if (options.working_dtype && dtype == torch::kFloat) {
      group.working = zeroed_buffer(length, tensor_options.dtype(*options.working_dtype));
    }
  };
  for (auto& span : found) {
    if (!current || *current != key(span)) {
      close_group();
      current = key(span);
      length = 0;
      layout.groups.emplace_back().first_span = layout.spans.size();
    }
    span.group = layout.groups.size() - 1;
    span.offset = length;
    // Working copies, of half the size, are aligned too.
    const int64_t element_size = options.working_dtype ? 2 : span.parameter.element_size();
    length = aligned_elements(length + span.numel, element_size);
    layout.numel += span.numel;
    layout.spans.push_back(std::move(span));
  }
  close_group();
  return layout;
}

}  // namespace fleet
