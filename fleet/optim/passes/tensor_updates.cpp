// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/passes/tensor_updates.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <ATen/Parallel.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/update/update_kernels.h"

namespace fleet::optim {
namespace {

constexpr int64_t kBlock = 1 << 15;  // elements

// The elements of a parameter as the kernels read them: float, and in one piece.
struct Elements {
  explicit Elements(TensorUpdate& update) : target(update.value) {
    const auto dtype = update.value.scalar_type();
    if (!update.value.is_cpu() || dtype == torch::kDouble || !torch::isFloatingType(dtype)) {
      throw Error("optim",
                  format("a parameter is {} on {}, and the fused kernels work on float, bf16 and "
                         "half on the CPU",
                         c10::toString(dtype), update.value.device().str()),
                  "use the optimizer of torch.optim for it");
    }
    const bool is_dense = update.value.is_non_overlapping_and_dense();
    value = is_dense ? update.value : update.value.contiguous();
    gradient = update.gradient;
    is_copied = !is_dense || dtype != torch::kFloat;
    if (dtype != torch::kFloat) value = value.to(torch::kFloat);
    if (gradient.scalar_type() != torch::kFloat) gradient = gradient.to(torch::kFloat);
    gradient = like_value(gradient);
    for (size_t i = 0; i < state.size(); ++i) {
      if (!update.state[i].defined()) continue;
      state[i] = like_value(update.state[i]);
      if (!state[i].is_same(update.state[i])) moved.emplace_back(update.state[i], state[i]);
    }
  }

  torch::Tensor like_value(const torch::Tensor& tensor) const {
    if (tensor.strides() == value.strides()) return tensor;
    return torch::empty_like(value).copy_(tensor);
  }

  void write_back() const {
    if (is_copied) target.copy_(value);
    for (const auto& [to, from] : moved) to.copy_(from);
  }

  int64_t numel() const { return value.numel(); }
  float* w(int64_t i) const { return value.mutable_data_ptr<float>() + i; }
  const float* g(int64_t i) const { return gradient.const_data_ptr<float>() + i; }
  float* s(size_t n, int64_t i) const { return state[n].mutable_data_ptr<float>() + i; }

  torch::Tensor target, value, gradient;
  std::array<torch::Tensor, 2> state = {};
  bool is_copied = false;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> moved;
};

using Work = std::function<void(int64_t block, int64_t begin, int64_t length)>;

void for_each_block(int64_t numel, const Work& work) {
  const int64_t blocks = (numel + kBlock - 1) / kBlock;
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      work(b, b * kBlock, std::min(kBlock, numel - b * kBlock));
    }
  });
}

template <typename F>
void for_each_tensor(std::span<TensorUpdate> tensors, F&& update) {
  const torch::NoGradGuard no_grad;
  for (auto& tensor : tensors) {
    if (tensor.value.numel() == 0) continue;
    const Elements elements(tensor);
    update(tensor, elements);
    elements.write_back();
    // A graph that was recorded before must not be driven backward over the results.
    if (!elements.is_copied) tensor.value.unsafeGetTensorImpl()->bump_version();
  }
}

ops::SquareSums sum_blocks(const std::vector<ops::SquareSums>& blocks) {
  ops::SquareSums sums = {0, 0};
  for (const auto& block : blocks) {
    sums.value += block.value;
    sums.update += block.update;
  }
  return sums;
}

size_t block_count(const Elements& elements) {
  return static_cast<size_t>((elements.numel() + kBlock - 1) / kBlock);
}

void adam(std::span<TensorUpdate> tensors, const AdamOptions& options, bool is_decoupled) {
  const auto& kernels = ops::update_kernels();
  for_each_tensor(tensors, [&](const TensorUpdate& tensor, const Elements& at) {
    const auto t = static_cast<double>(tensor.updates);
    const double first = 1 - std::pow(options.beta1, t), second = 1 - std::pow(options.beta2, t);
    const ops::AdamStep step{.gradient_scale = 1,
                             .l2 = static_cast<float>(is_decoupled ? 0 : options.weight_decay),
                             .decay_factor = static_cast<float>(
                                 is_decoupled ? 1 - options.lr * options.weight_decay : 1),
                             .beta1 = static_cast<float>(options.beta1),
                             .beta2 = static_cast<float>(options.beta2),
                             .one_minus_beta1 = static_cast<float>(1 - options.beta1),
                             .one_minus_beta2 = static_cast<float>(1 - options.beta2),
                             .step = static_cast<float>(options.lr / first),
                             .root_correction = static_cast<float>(1 / std::sqrt(second)),
                             .epsilon = static_cast<float>(options.epsilon)};
    for_each_block(at.numel(), [&](int64_t, int64_t i, int64_t n) {
      kernels.adam(step, at.w(i), at.g(i), at.s(0, i), at.s(1, i), n, nullptr);
    });
  });
}

}  // namespace

void sgd_update(std::span<TensorUpdate> tensors, const SgdOptions& options) {
  const ops::SgdStep step{.gradient_scale = 1,
                          .weight_decay = static_cast<float>(options.weight_decay),
                          .lr = static_cast<float>(options.lr)};
  for_each_tensor(tensors, [&](const TensorUpdate&, const Elements& at) {
    for_each_block(at.numel(), [&](int64_t, int64_t i, int64_t n) {
      ops::update_kernels().sgd(step, at.w(i), at.g(i), n, nullptr);
    });
  });
}

void momentum_update(std::span<TensorUpdate> tensors, const MomentumOptions& options) {
  const ops::MomentumStep step{.gradient_scale = 1,
                               .weight_decay = static_cast<float>(options.weight_decay),
                               .momentum = static_cast<float>(options.momentum),
                               .inner = 1,
                               .outer = static_cast<float>(options.lr),
                               .nesterov = options.use_nesterov};
  for_each_tensor(tensors, [&](const TensorUpdate&, const Elements& at) {
    for_each_block(at.numel(), [&](int64_t, int64_t i, int64_t n) {
      ops::update_kernels().momentum(step, at.w(i), at.g(i), at.s(0, i), n, nullptr);
    });
  });
}

void adam_update(std::span<TensorUpdate> tensors, const AdamOptions& options) {
  adam(tensors, options, /*is_decoupled=*/false);
}

void adamw_update(std::span<TensorUpdate> tensors, const AdamWOptions& options) {
  adam(tensors,
       {.lr = options.lr,
        .beta1 = options.beta1,
        .beta2 = options.beta2,
        .epsilon = options.epsilon,
        .weight_decay = options.weight_decay},
       /*is_decoupled=*/true);
}

void lars_update(std::span<TensorUpdate> tensors, const LarsOptions& options) {
  const auto& kernels = ops::update_kernels();
  for_each_tensor(tensors, [&](const TensorUpdate& tensor, const Elements& at) {
    const double decay = tensor.is_excluded ? 0 : options.lars_weight_decay;
    LarsRatio ratio;
    if (!tensor.is_excluded || options.rule.adapt_without_decay) {
      std::vector<ops::SquareSums> sums(block_count(at));
      for_each_block(at.numel(), [&](int64_t b, int64_t i, int64_t n) {
        sums[static_cast<size_t>(b)] = {.value = kernels.square_sum(at.w(i), n),
                                        .update = kernels.square_sum(at.g(i), n)};
      });
      const auto all = sum_blocks(sums);
      ratio = lars_ratio(options, {.lr = options.lr, .weight_decay = decay}, std::sqrt(all.value),
                         std::sqrt(all.update));
    }
    const bool is_inside = options.rule.lr_in_velocity;
    const ops::MomentumStep step{
        .gradient_scale = 1,
        .weight_decay = static_cast<float>(ratio.skips_decay ? 0 : decay),
        .momentum = static_cast<float>(options.momentum),
        .inner = static_cast<float>(ratio.ratio * (is_inside ? options.lr : 1)),
        .outer = static_cast<float>(is_inside ? 1 : options.lr),
        .nesterov = options.use_nesterov};
    for_each_block(at.numel(), [&](int64_t, int64_t i, int64_t n) {
      kernels.momentum(step, at.w(i), at.g(i), at.s(0, i), n, nullptr);
    });
  });
}

void lamb_update(std::span<TensorUpdate> tensors, const LambOptions& options) {
  const auto& kernels = ops::update_kernels();
  for_each_tensor(tensors, [&](const TensorUpdate& tensor, const Elements& at) {
    const auto t = static_cast<double>(tensor.updates);
    const auto correction = lamb_correction(
        options.rule,
        {.first = 1 - std::pow(options.beta1, t), .second = 1 - std::pow(options.beta2, t)});
    const ops::LambStep step{
        .gradient_scale = 1,
        .weight_decay = static_cast<float>(tensor.is_excluded ? 0 : options.lamb_weight_decay),
        .beta1 = static_cast<float>(options.beta1),
        .beta2 = static_cast<float>(options.beta2),
        .one_minus_beta1 = static_cast<float>(1 - options.beta1),
        .one_minus_beta2 = static_cast<float>(1 - options.beta2),
        .correction = static_cast<float>(correction.first),
        .root_correction = static_cast<float>(correction.root),
        .epsilon = static_cast<float>(options.epsilon)};
    std::vector<ops::SquareSums> sums(block_count(at));
    for_each_block(at.numel(), [&](int64_t b, int64_t i, int64_t n) {
      sums[static_cast<size_t>(b)] =
          kernels.lamb_moments(step, at.w(i), at.g(i), at.s(0, i), at.s(1, i), n);
    });
    double ratio = 1;
    if (!tensor.is_excluded || options.rule.adapt_without_decay) {
      const auto all = sum_blocks(sums);
      ratio = lamb_ratio(options.rule, std::sqrt(all.value), std::sqrt(all.update));
    }
    const auto rate = static_cast<float>(options.lr * correction.step * ratio);
    for_each_block(at.numel(), [&](int64_t, int64_t i, int64_t n) {
      kernels.lamb_apply(step, rate, at.w(i), at.s(0, i), at.s(1, i), n, nullptr);
    });
  });
}

}  // namespace fleet::optim
