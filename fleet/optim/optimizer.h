#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "fleet/core/model_handle.h"
#include "fleet/core/parameter_arena.h"

namespace fleet::optim {

/// A run of elements of one arena group that is updated in one go.
struct UpdateRange {
  size_t group = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

/// The runs that cover the spans whose flag is set; all spans of a group in one run when all are.
std::vector<UpdateRange> update_ranges(const ParameterArena& arena, const std::vector<bool>& used);

/// Optimizer state under a name, for snapshots: one flat tensor per arena group.
struct NamedState {
  std::string name;
  std::vector<torch::Tensor> groups;
};

/// Updates an arena's parameters from its gradients. An optimizer is made with the model and bound
/// to the arena by `bind`, which `distributed_optimizer` does; alone, it is used with an arena of
/// its own:
///
///   optim::Momentum momentum(net, {.lr = 0.1});
///   ParameterArena arena(net);
///   momentum.bind(arena);
///   momentum.step(update_ranges(arena, all_used));
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(Optimizer&&) = default;

  virtual std::string_view name() const = 0;
  const ModelHandle& model() const { return model_; }

  /// Allocates the state.
  void bind(ParameterArena& arena);
  /// One update of `ranges`; `grad()` must be whole (ParameterArena::end_window).
  void step(const std::vector<UpdateRange>& ranges);

  double lr() const { return lr_; }
  void set_lr(double lr);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  const std::vector<NamedState>& state() const { return state_; }

 protected:
  Optimizer(ModelHandle model, double lr);

  /// Names of the state tensors that the arena is to hold for this optimizer.
  virtual std::vector<std::string> state_names() const = 0;
  /// Updates one run. `state` holds the same run of every state tensor, in the order of
  /// `state_names`.
  virtual void update(const torch::Tensor& values, const torch::Tensor& gradients,
                      std::vector<torch::Tensor>& state) = 0;

  ModelHandle model_;
  double lr_;
  int64_t steps_ = 0;  // updates done, counting the one under way

 private:
  ParameterArena* arena_ = nullptr;
  std::vector<NamedState> state_;
};

/// Throws one Error for all of `problems`, if any; optimizers check their options with it.
void refuse(std::string_view optimizer, const std::vector<std::string>& problems);

}  // namespace fleet::optim
