#include "fleet/optim/optimizer.h"

#include <cmath>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet::optim {

std::vector<UpdateRange> update_ranges(const ParameterArena& arena, const std::vector<bool>& used) {
  FLEET_ASSERT(used.size() == arena.spans().size(), "one flag per span");
  std::vector<UpdateRange> ranges;
  for (size_t g = 0; g < arena.groups().size(); ++g) {
    const auto& group = arena.groups()[g];
    bool open = false;
    for (size_t i = group.first_span; i < group.last_span; ++i) {
      if (!used[i]) {
        open = false;
        continue;
      }
      const int64_t end =
          i + 1 < group.last_span ? arena.spans()[i + 1].offset : group.values.numel();
      if (!open) ranges.push_back({g, arena.spans()[i].offset, end});
      ranges.back().end = end;
      open = true;
    }
  }
  return ranges;
}

Optimizer::Optimizer(ModelHandle model, double lr) : model_(std::move(model)), lr_(lr) {
  set_lr(lr);
}
Optimizer::~Optimizer() = default;

void Optimizer::set_lr(double lr) {
  if (!std::isfinite(lr) || lr < 0) {
    throw Error("optim", format("the learning rate is {}", lr),
                "use a finite number of at least 0");
  }
  lr_ = lr;
}

void Optimizer::bind(ParameterArena& arena) {
  arena_ = &arena;
  state_.clear();
  for (auto& name : state_names()) state_.push_back({std::move(name), arena.make_state()});
}

void Optimizer::step(const std::vector<UpdateRange>& ranges) {
  FLEET_ASSERT(arena_ != nullptr, "step() before bind()");
  const torch::NoGradGuard no_grad;
  ++steps_;
  std::vector<torch::Tensor> state(state_.size());
  for (const auto& range : ranges) {
    const auto& group = arena_->groups()[range.group];
    const int64_t length = range.end - range.begin;
    for (size_t s = 0; s < state_.size(); ++s) {
      state[s] = state_[s].groups[range.group].narrow(0, range.begin, length);
    }
    update(group.values.narrow(0, range.begin, length),
           group.gradients.narrow(0, range.begin, length), state);
  }
}

void refuse(std::string_view optimizer, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  throw Error::all("optim", format("these options of {} make no sense:", optimizer), problems);
}

}  // namespace fleet::optim
