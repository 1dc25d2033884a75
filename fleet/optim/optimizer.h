// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "fleet/core/model_handle.h"
#include "fleet/core/parameter_arena.h"
#include "fleet/ops/update/update_kernels.h"
#include "fleet/optim/parameter_group.h"
#include "fleet/optim/passes/arena_blocks.h"
#include "fleet/optim/passes/trust_ratios.h"

namespace fleet::optim {

/// Optimizer state under a name, for snapshots: one flat tensor per arena group.
struct NamedState {
  std::string name;
  std::vector<torch::Tensor> groups;
};

/// What the update loop knows about the gradients that an optimizer is to use.
struct StepInput {
  double gradient_scale = 1;                 // times every gradient, as it is read
  std::optional<double> gradient_norm = {};  // of the gradients as they lie there, if known
  std::span<const double> block_sums = {};   // their squares summed up by ArenaBlocks, if known
};

/// Updates an arena's parameters from its gradients, in one or two fused passes over memory. An
/// optimizer is made with the model and bound to the arena by `bind`, which `distributed_optimizer`
/// does; alone, it is used with an arena of its own:
///
///   optim::Momentum momentum(net, {.lr = 0.1});
///   ParameterArena arena(net);
///   momentum.bind(arena);
///   arena.begin_window();  loss.backward();  arena.end_window();
///   momentum.step();
///
/// Results do not depend on the number of threads. Float on the CPU takes the fused kernels;
/// other types and devices take LibTorch's ops, to the same formulas.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(Optimizer&&) = default;

  virtual std::string_view name() const = 0;
  const ModelHandle& model() const { return model_; }

  /// Allocates the state and finds what holds for each parameter.
  void bind(ParameterArena& arena);

  /// One update of the spans whose flag is set (none given: of all); the gradients must be complete
  /// (ParameterArena::end_window). Clips to `max_grad_norm` first.
  void step(const std::vector<bool>& used = {}, const StepInput& input = {});

  /// The blocks in which a step works on these spans, for what is summed up by block before it.
  const ArenaBlocks& choose_blocks(const std::vector<bool>& used);

  virtual double lr() const { return lr_; }
  virtual void set_lr(double lr);
  double max_grad_norm() const { return max_grad_norm_; }  // 0: no clipping

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  const std::vector<NamedState>& state() const { return state_; }
  /// How often each span was updated, in the arena's order, where the rule depends on it (Adam,
  /// LAMB); else undefined. A part of the state; doubles, since local SGD may average it with the
  /// moments.
  const torch::Tensor& span_updates() const { return span_updates_; }
  /// State beside these that only the optimizer itself can read and write, as bytes.
  virtual bool has_opaque_state() const { return false; }
  virtual torch::Tensor opaque_state() const { return {}; }
  virtual void set_opaque_state(const torch::Tensor& /*bytes*/) {}
  const std::vector<SpanSettings>& settings() const { return settings_; }

  /// Of the parameters that have one; empty for optimizers without.
  std::vector<TrustRatio> trust_ratios() const;

 protected:
  /// What all optimizers' options hold.
  struct Common {
    double lr = 0;
    double weight_decay = 0;
    double max_grad_norm = 0;
    std::vector<ParameterGroup> groups = {};
  };
  /// Contiguous elements of one parameter, for the fused kernels.
  struct FusedSlice {
    size_t block = 0;
    size_t span = 0;
    float* value = nullptr;
    const float* gradient = nullptr;
    std::array<float*, 2> state = {};
    int64_t length = 0;
    uint16_t* low = nullptr;
    float gradient_scale = 1;
  };
  /// One parameter, for LibTorch's ops.
  struct ParameterSlice {
    size_t span = 0;
    torch::Tensor value;
    torch::Tensor gradient;  // scaled already
    std::array<torch::Tensor, 2> state = {};
  };

  Optimizer(ModelHandle model, Common common);

  /// Throws where `lr` is no rate.
  static void check_lr(double lr);
  double ratio(size_t span) const { return trust_.ratio(span); }
  /// Of the gradient as it lies there; read again only where no earlier pass has summed it up.
  double gradient_square_sum(const FusedSlice& slice) const;
  ParameterArena& arena() const { return *arena_; }

  /// Names of the state tensors, two at most.
  virtual std::vector<std::string> state_names() const = 0;
  /// Whether `span_updates` is kept.
  virtual bool counts_updates() const { return false; }
  /// Changes the settings of spans before `groups` do.
  virtual void adjust_settings(const ParameterArena& /*arena*/,
                               std::vector<SpanSettings>& /*settings*/) {}
  /// Once, when the arena is known.
  virtual void on_bind() {}
  /// One update of the spans that are used. Overridden by optimizers that do not work span by span,
  /// which need none of the functions below.
  virtual void update(const std::vector<bool>& used, double gradient_scale);
  /// Once per step, before the passes: `steps()` and `span_updates()` count this one already.
  virtual void prepare() {}

  /// Optimizers with a trust ratio make two passes: `measure` all slices of a span, then `trust`
  /// with their norms, then `apply`. Spans are worked on by several threads at once.
  virtual bool has_trust_ratio() const { return false; }
  virtual ops::SquareSums measure(const FusedSlice& slice);
  virtual double trust(size_t span, double value_norm, double update_norm);
  virtual void apply(const FusedSlice& slice);
  virtual void apply(ParameterSlice& slice);

  /// `trust`, kept for `apply` and for `trust_ratios`.
  void set_trust(size_t span, double value_norm, double update_norm);

  ModelHandle model_;
  double lr_ = 0;
  int64_t steps_ = 0;  // updates done, counting the one under way
  std::vector<SpanSettings> settings_;

 private:
  void count_updates(const std::vector<bool>& used);
  void step_fused(size_t group, double gradient_scale);
  void step_by_ops(size_t group, const std::vector<bool>& used, double gradient_scale);
  FusedSlice slice_of(size_t block, double gradient_scale) const;
  FusedSlice fresh_slice_of(size_t block, double gradient_scale) const;

  double max_grad_norm_ = 0;
  std::vector<ParameterGroup> groups_;
  ParameterArena* arena_ = nullptr;
  std::vector<NamedState> state_;
  torch::Tensor span_updates_;
  std::unique_ptr<ArenaBlocks> blocks_;
  std::vector<ops::SquareSums> sums_;      // one per block
  std::span<const double> gradient_sums_;  // likewise, during a step
  TrustRatios trust_;
};

}  // namespace fleet::optim
