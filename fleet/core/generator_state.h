// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <torch/types.h>

namespace fleet {

/// The state of a random number generator; equal states give equal numbers.
class GeneratorState {
 public:
  explicit GeneratorState(at::Generator generator);
  ~GeneratorState();
  GeneratorState(GeneratorState&&) noexcept;
  GeneratorState& operator=(GeneratorState&&) noexcept;

  const at::Generator& generator() const { return generator_; }
  void restore() const;
  bool has_advanced() const;

  /// Called after the op that used it: records the state after the op. False if the op used no
  /// random numbers.
  bool set_end();
  /// The generator is in the state that `set_end` recorded.
  bool is_at_end() const;

  /// Of the default CPU generator.
  static GeneratorState of_default();

 private:
  struct CpuState;
  struct CpuPosition;
  at::Generator generator_;
  std::unique_ptr<CpuState> cpu_;
  std::unique_ptr<CpuPosition> cpu_end_;
  torch::Tensor other_, other_end_;  // of other devices
};

}  // namespace fleet
