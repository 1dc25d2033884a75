// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/passes/gradient_clipping.h"

namespace fleet::optim {
namespace {

constexpr int64_t kTileElements = 4096;

}  // namespace

Optimizer::Optimizer(ModelHandle model, Common common)
    : model_(std::move(model)),
      max_grad_norm_(common.max_grad_norm),
      groups_(std::move(common.groups)) {
  check_lr(common.lr);
  lr_ = common.lr;
  settings_.push_back({.weight_decay = common.weight_decay});  // of every span, until bound
}

Optimizer::~Optimizer() = default;

void Optimizer::check_lr(double lr) {
  if (std::isfinite(lr) && lr >= 0) return;
  throw UsageError("optim", format("the learning rate is {}", lr),
                   "use a finite number of at least 0");
}

void Optimizer::set_lr(double lr) {
  check_lr(lr);
  lr_ = lr;
}

void Optimizer::bind(ParameterArena& arena) {
  FLEET_ASSERT(arena_ == nullptr, "an optimizer is bound once");
  const auto of_all = settings_.front();
  settings_.assign(arena.spans().size(), of_all);
  adjust_settings(arena, settings_);
  apply_groups(name(), arena, groups_, settings_);
  arena_ = &arena;
  blocks_ = std::make_unique<ArenaBlocks>(arena);
  trust_.resize(arena.spans().size());
  state_.clear();
  const AllocationTag tag(allocation::kOptimizerState);
  for (auto& name : state_names()) state_.push_back({std::move(name), arena.make_state()});
  if (counts_updates()) span_updates_ = torch::zeros({std::ssize(arena.spans())}, torch::kDouble);
  on_bind();
}

const ArenaBlocks& Optimizer::choose_blocks(const std::vector<bool>& used) {
  blocks_->choose(used);
  return *blocks_;
}

void Optimizer::count_updates(const std::vector<bool>& used) {
  if (!span_updates_.defined()) return;
  auto* const counts = span_updates_.mutable_data_ptr<double>();
  for (size_t i = 0; i < used.size(); ++i) counts[i] += used[i] ? 1 : 0;
}

void Optimizer::step(const std::vector<bool>& used, const StepInput& input) {
  FLEET_ASSERT(arena_ != nullptr, "step() before bind()");
  const torch::NoGradGuard no_grad;
  const auto all = used.empty() ? std::vector<bool>(arena_->spans().size(), true) : used;
  blocks_->choose(all);
  const double gradient_scale =
      input.gradient_scale * clipping_factor(name(), *arena_, *blocks_,
                                             {.max_norm = max_grad_norm_,
                                              .gradient_scale = input.gradient_scale,
                                              .gradient_norm = input.gradient_norm});
  gradient_sums_ = input.block_sums;
  FLEET_ASSERT(gradient_sums_.empty() || gradient_sums_.size() == blocks_->count(),
               "one sum per block of the spans that are used");
  ++steps_;
  count_updates(all);
  trust_.clear();
  prepare();
  update(all, gradient_scale);
  // A graph that was recorded before this step must not be driven backward over its results.
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i]) arena_->spans()[i].parameter.unsafeGetTensorImpl()->bump_version();
  }
  gradient_sums_ = {};
}

void Optimizer::update(const std::vector<bool>& used, double gradient_scale) {
  for (size_t g = 0; g < arena_->groups().size(); ++g) {
    if (is_fused(arena_->groups()[g])) {
      step_fused(g, gradient_scale);
    } else {
      step_by_ops(g, used, gradient_scale);
    }
  }
}

Optimizer::FusedSlice Optimizer::slice_of(size_t index, double gradient_scale) const {
  const auto& block = (*blocks_)[index];
  const auto& group = arena_->groups()[arena_->spans()[block.span].group];
  FusedSlice slice;
  slice.block = index;
  slice.span = block.span;
  slice.value = group.values.mutable_data_ptr<float>() + block.begin;
  slice.gradient = group.gradients.const_data_ptr<float>() + block.begin;
  for (size_t s = 0; s < state_.size(); ++s) {
    slice.state[s] =
        state_[s].groups[arena_->spans()[block.span].group].mutable_data_ptr<float>() + block.begin;
  }
  slice.length = block.length;
  if (arena_->spans()[block.span].working.defined()) {
    slice.low = static_cast<uint16_t*>(group.working.mutable_data_ptr()) + block.begin;
  }
  slice.gradient_scale = static_cast<float>(gradient_scale);
  return slice;
}

// With what was written to the working copy since the last step: the slice is in the cache then.
Optimizer::FusedSlice Optimizer::fresh_slice_of(size_t index, double gradient_scale) const {
  auto slice = slice_of(index, gradient_scale);
  if (slice.low) ops::update_kernels().refresh_master(slice.value, slice.low, slice.length);
  return slice;
}

void Optimizer::step_fused(size_t group, double gradient_scale) {
  const auto range = blocks_->of_group(group);
  const auto slice = [&](size_t block) { return slice_of(block, gradient_scale); };
  const auto fresh = [&](size_t block) { return fresh_slice_of(block, gradient_scale); };
  if (!has_trust_ratio()) {
    blocks_->for_each(range, [&](size_t block) {
      const auto whole = slice(block);
      if (!whole.low) return apply(whole);
      // In tiles: what is compared with the working copy is still in the first-level cache when the
      // kernel reads it.
      for (int64_t begin = 0; begin < whole.length; begin += kTileElements) {
        auto tile = whole;
        tile.length = std::min(kTileElements, whole.length - begin);
        tile.value += begin;
        tile.gradient += begin;
        for (size_t s = 0; s < state_.size(); ++s) tile.state[s] += begin;
        tile.low += begin;
        ops::update_kernels().refresh_master(tile.value, tile.low, tile.length);
        apply(tile);
      }
    });
    return;
  }
  sums_.resize(blocks_->count());
  blocks_->for_each(range, {.measure = [&](size_t block) { sums_[block] = measure(fresh(block)); },
                            .reduce =
                                [&](size_t first, size_t last) {
                                  ops::SquareSums sums = {0, 0};
                                  for (size_t i = first; i < last; ++i) {
                                    sums.value += sums_[i].value;
                                    sums.update += sums_[i].update;
                                  }
                                  set_trust((*blocks_)[first].span, std::sqrt(sums.value),
                                            std::sqrt(sums.update));
                                },
                            .apply = [&](size_t block) { apply(slice(block)); }});
}

void Optimizer::step_by_ops(size_t group, const std::vector<bool>& used, double gradient_scale) {
  const auto& arena_group = arena_->groups()[group];
  for (size_t i = arena_group.first_span; i < arena_group.last_span; ++i) {
    const auto& span = arena_->spans()[i];
    if (!used[i] || span.numel == 0) continue;
    const auto cut = [&](const torch::Tensor& flat) {
      return flat.narrow(0, span.offset, span.numel);
    };
    arena_->refresh_masters(i);
    const auto value = cut(arena_group.values);
    const auto dtype = value.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    ParameterSlice slice;
    slice.span = i;
    slice.value = value.to(dtype);
    slice.gradient = cut(arena_group.gradients).to(dtype) * gradient_scale;
    for (size_t s = 0; s < state_.size(); ++s) slice.state[s] = cut(state_[s].groups[group]);
    apply(slice);
    if (slice.value.scalar_type() != value.scalar_type()) value.copy_(slice.value);
    if (span.working.defined()) span.working.copy_(span.value);
  }
}

double Optimizer::gradient_square_sum(const FusedSlice& slice) const {
  if (gradient_sums_.empty()) return ops::update_kernels().square_sum(slice.gradient, slice.length);
  return gradient_sums_[slice.block];
}

ops::SquareSums Optimizer::measure(const FusedSlice&) { return {0, 0}; }
double Optimizer::trust(size_t, double, double) { return 1; }
void Optimizer::apply(const FusedSlice&) {
  FLEET_ASSERT(false, "an optimizer that works by slices");
}
void Optimizer::apply(ParameterSlice&) {
  FLEET_ASSERT(false, "an optimizer that works by parameters");
}

void Optimizer::set_trust(size_t span, double value_norm, double update_norm) {
  trust_.set(span, trust(span, value_norm, update_norm), value_norm, update_norm);
}

std::vector<TrustRatio> Optimizer::trust_ratios() const { return trust_.list(*arena_, settings_); }

}  // namespace fleet::optim
