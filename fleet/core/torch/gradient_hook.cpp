// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/torch/gradient_hook.h"

#include <utility>

#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace fleet::compat {
namespace {

struct LambdaPreHook final : torch::autograd::FunctionPreHook {
  explicit LambdaPreHook(std::function<void()> work) : work(std::move(work)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    work();
    return gradients;
  }
  std::function<void()> work;
};

}  // namespace

struct GradientHook::State {
  c10::intrusive_ptr<torch::autograd::Node> node;
  const torch::autograd::FunctionPreHook* before = nullptr;
  uintptr_t key = 0;
};

GradientHook::GradientHook(const torch::Tensor& parameter, std::function<void()> before,
                           std::function<void()> ready)
    : state_(std::make_unique<State>()) {
  state_->node = torch::autograd::impl::grad_accumulator(parameter);
  auto pre_hook = std::make_unique<LambdaPreHook>(std::move(before));
  state_->before = pre_hook.get();
  state_->node->add_pre_hook(std::move(pre_hook));
  state_->key =
      state_->node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [ready = std::move(ready)](const torch::autograd::variable_list& outputs,
                                     const torch::autograd::variable_list&) {
            ready();
            return outputs;
          }));
}

GradientHook::~GradientHook() {
  if (!state_) return;
  std::erase_if(state_->node->pre_hooks(),
                [&](const auto& hook) { return hook.get() == state_->before; });
  state_->node->del_post_hook(state_->key);
}

GradientHook::GradientHook(GradientHook&&) noexcept = default;

GradientHook& GradientHook::operator=(GradientHook&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

}  // namespace fleet::compat
