#include "fleet/optim/optimizer.h"

#include <cmath>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/optim/gradient_health.h"

namespace fleet::optim {

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
  throw Error("optim", format("the learning rate is {}", lr), "use a finite number of at least 0");
}

void Optimizer::set_lr(double lr) {
  check_lr(lr);
  lr_ = lr;
}

void Optimizer::bind(ParameterArena& arena) {
  FLEET_ASSERT(arena_ == nullptr, "an optimizer is bound once");
  const auto of_all = settings_.front();
  settings_.assign(arena.spans().size(), of_all);
  settle(arena, settings_);
  apply_groups(name(), arena, groups_, settings_);
  arena_ = &arena;
  blocks_ = std::make_unique<ArenaBlocks>(arena);
  trust_.assign(arena.spans().size(), {});
  state_.clear();
  const AllocationTag tag(allocation::kOptimizerState);
  for (auto& name : state_names()) state_.push_back({std::move(name), arena.make_state()});
  if (counts_updates()) span_updates_ = torch::zeros({std::ssize(arena.spans())}, torch::kDouble);
  on_bind();
}

void Optimizer::count_updates(const std::vector<bool>& used) {
  if (!span_updates_.defined()) return;
  auto* const counts = span_updates_.mutable_data_ptr<double>();
  for (size_t i = 0; i < used.size(); ++i) counts[i] += used[i] ? 1 : 0;
}

double Optimizer::clipping(const StepInput& input) const {
  if (max_grad_norm_ == 0) return 1;
  double norm = input.gradient_norm.value_or(0);
  if (!input.gradient_norm) {
    const auto health = gradient_health(*arena_, *blocks_);
    if (!health.is_finite()) {
      throw Error(name(),
                  format("the gradient of '{}' is not finite, so there is no norm to clip to; "
                         "nothing was updated",
                         arena_->spans()[*health.first_bad].name),
                  "lower the learning rate, warm it up, or look for bad samples");
    }
    norm = health.norm;
  }
  // The small term is torch's clip_grad_norm_'s.
  return std::min(1.0, max_grad_norm_ / (norm * std::abs(input.gradient_scale) + 1e-6));
}

void Optimizer::step(const std::vector<bool>& used, const StepInput& input) {
  FLEET_ASSERT(arena_ != nullptr, "step() before bind()");
  const torch::NoGradGuard no_grad;
  const auto all = used.empty() ? std::vector<bool>(arena_->spans().size(), true) : used;
  has_same_blocks_ = !blocks_->choose(all);
  const double gradient_scale = input.gradient_scale * clipping(input);
  gradient_sums_ = input.block_sums;
  FLEET_ASSERT(gradient_sums_.empty() || gradient_sums_.size() == blocks_->count(),
               "one sum per block of the spans that are used");
  ++steps_;
  count_updates(all);
  for (auto& trust : trust_) trust.is_fresh = false;
  prepare();
  update(all, gradient_scale);
  // A graph that was recorded before this step must not be driven backward over its results.
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i]) arena_->spans()[i].parameter.unsafeGetTensorImpl()->bump_version();
  }
  finish();
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

Optimizer::Run Optimizer::run_of(size_t index, double gradient_scale) const {
  const auto& block = (*blocks_)[index];
  const auto& group = arena_->groups()[arena_->spans()[block.span].group];
  Run run;
  run.block = index;
  run.span = block.span;
  run.value = group.values.mutable_data_ptr<float>() + block.begin;
  run.gradient = group.gradients.const_data_ptr<float>() + block.begin;
  for (size_t s = 0; s < state_.size(); ++s) {
    run.state[s] =
        state_[s].groups[arena_->spans()[block.span].group].mutable_data_ptr<float>() + block.begin;
  }
  run.length = block.length;
  if (arena_->spans()[block.span].working.defined()) {
    run.low = static_cast<uint16_t*>(group.working.mutable_data_ptr()) + block.begin;
  }
  run.gradient_scale = static_cast<float>(gradient_scale);
  return run;
}

// With what was written to the working copy since the last step: the run is in the cache then.
Optimizer::Run Optimizer::fresh_run_of(size_t index, double gradient_scale) const {
  auto run = run_of(index, gradient_scale);
  if (run.low)
    run.is_rewritten = ops::update_kernels().take_written(run.value, run.low, run.length);
  return run;
}

void Optimizer::step_fused(size_t group, double gradient_scale) {
  const auto stretch = blocks_->of_group(group);
  const auto run = [&](size_t block) { return run_of(block, gradient_scale); };
  const auto fresh = [&](size_t block) { return fresh_run_of(block, gradient_scale); };
  if (!has_trust_ratio()) {
    blocks_->for_each(stretch, [&](size_t block) { apply(fresh(block)); });
    return;
  }
  sums_.resize(blocks_->count());
  blocks_->for_each(stretch,
                    {.measure = [&](size_t block) { sums_[block] = measure(fresh(block)); },
                     .settle =
                         [&](size_t first, size_t last) {
                           ops::SquareSums sums = {0, 0};
                           for (size_t i = first; i < last; ++i) {
                             sums.value += sums_[i].value;
                             sums.update += sums_[i].update;
                           }
                           settle_trust((*blocks_)[first].span, std::sqrt(sums.value),
                                        std::sqrt(sums.update));
                         },
                     .apply = [&](size_t block) { apply(run(block)); }});
}

void Optimizer::step_by_ops(size_t group, const std::vector<bool>& used, double gradient_scale) {
  const auto& arena_group = arena_->groups()[group];
  for (size_t i = arena_group.first_span; i < arena_group.last_span; ++i) {
    const auto& span = arena_->spans()[i];
    if (!used[i] || span.numel == 0) continue;
    const auto cut = [&](const torch::Tensor& flat) {
      return flat.narrow(0, span.offset, span.numel);
    };
    arena_->take_written(i);
    const auto value = cut(arena_group.values);
    const auto dtype = value.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    Whole whole;
    whole.span = i;
    whole.value = value.to(dtype);
    whole.gradient = cut(arena_group.gradients).to(dtype) * gradient_scale;
    for (size_t s = 0; s < state_.size(); ++s) whole.state[s] = cut(state_[s].groups[group]);
    apply(whole);
    if (whole.value.scalar_type() != value.scalar_type()) value.copy_(whole.value);
    if (span.working.defined()) span.working.copy_(span.value);
  }
}

double Optimizer::gradient_square_sum(const Run& run) const {
  if (gradient_sums_.empty()) return ops::update_kernels().square_sum(run.gradient, run.length);
  return gradient_sums_[run.block];
}

ops::SquareSums Optimizer::measure(const Run&) { return {0, 0}; }
double Optimizer::trust(size_t, double, double) { return 1; }
void Optimizer::apply(const Run&) { FLEET_ASSERT(false, "an optimizer that works by runs"); }
void Optimizer::apply(Whole&) { FLEET_ASSERT(false, "an optimizer that works by parameters"); }

void Optimizer::settle_trust(size_t span, double value_norm, double update_norm) {
  auto& own = trust_[span];
  own.value_norm = value_norm;
  own.update_norm = update_norm;
  own.ratio = trust(span, value_norm, update_norm);
  own.is_fresh = true;
}

std::vector<TrustRatio> Optimizer::trust_ratios() const {
  std::vector<TrustRatio> result;
  for (size_t i = 0; i < trust_.size(); ++i) {
    if (!trust_[i].is_fresh || !settings_[i].use_trust_ratio) continue;
    result.push_back({.name = arena_->spans()[i].name,
                      .ratio = trust_[i].ratio,
                      .value_norm = trust_[i].value_norm,
                      .update_norm = trust_[i].update_norm});
  }
  return result;
}

void refuse(std::string_view optimizer, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw Error::all("optim", format("these options of {} make no sense:", optimizer), problems);
}

void want_unit(std::vector<std::string>& problems, std::string_view what, double value) {
  if (!(value >= 0 && value < 1)) {
    problems.push_back(format("{} {} is outside [0, 1)", what, value));
  }
}

void want_not_negative(std::vector<std::string>& problems, std::string_view what, double value) {
  if (!(std::isfinite(value) && value >= 0)) {
    problems.push_back(
        format("{} {} is {}", what, value, value < 0 ? "negative" : "not a finite number"));
  }
}

}  // namespace fleet::optim
