#include "fleet/core/torch_compat.h"

#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(_, FLEET_INTERCEPT_KEY, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

namespace fleet::compat {

struct GradientHook::State {
  c10::intrusive_ptr<torch::autograd::Node> node;
  uintptr_t key = 0;
};

GradientHook::GradientHook(const torch::Tensor& parameter, std::function<void()> landed)
    : state_(std::make_unique<State>()) {
  state_->node = torch::autograd::impl::grad_accumulator(parameter);
  state_->key =
      state_->node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [landed = std::move(landed)](const torch::autograd::variable_list& outputs,
                                       const torch::autograd::variable_list&) {
            landed();
            return outputs;
          }));
}

GradientHook::~GradientHook() {
  if (state_) state_->node->del_post_hook(state_->key);
}

GradientHook::GradientHook(GradientHook&&) noexcept = default;

GradientHook& GradientHook::operator=(GradientHook&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

}  // namespace fleet::compat
