// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace fleet {

namespace memory {

/// An interval of a forward to be recomputed in backward; see `fleet::recompute`.
class RecomputeScope {
 public:
  RecomputeScope();
  ~RecomputeScope();  // without finish(): everything is kept
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

  /// Evicts what was saved since.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace memory

/// Calls `fn(inputs...)` and keeps only its inputs and what it returns; backward recomputes the
/// rest. Gradients, buffers and random numbers are those of a plain call.
///
///   auto y = fleet::recompute([&](torch::Tensor x) { return block->forward(x); }, x);
///
/// `fn` may take and return anything, and call recompute itself.
template <typename F, typename... Inputs>
auto recompute(F&& fn, Inputs&&... inputs) {
  memory::RecomputeScope scope;
  if constexpr (std::is_void_v<std::invoke_result_t<F, Inputs...>>) {
    std::invoke(std::forward<F>(fn), std::forward<Inputs>(inputs)...);
    scope.finish();
  } else {
    auto result = std::invoke(std::forward<F>(fn), std::forward<Inputs>(inputs)...);
    scope.finish();
    return result;
  }
}

}  // namespace fleet
