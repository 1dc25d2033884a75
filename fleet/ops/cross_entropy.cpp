// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/cross_entropy.h"

#include <limits>
#include <numeric>

#include <ATen/autocast_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/fused_op.inl"

namespace fleet::ops {
namespace {

using Two = std::tuple<Tensor, Tensor>;

using CrossEntropyOp = Two(const Tensor&, const Tensor&, int64_t, int64_t, double, bool);

const auto& cross_entropy_op() {
  static const auto op = fleet_op<CrossEntropyOp>("cross_entropy");
  return op;
}

void check_cross_entropy(const Tensor& logits, const Tensor& labels) {
  if (logits.dim() == 2 && labels.dim() == 1 && labels.size(0) == logits.size(0) &&
      labels.scalar_type() == torch::kLong) {
    return;
  }
  throw Error("cross_entropy",
              format("logits are {}, labels {} of {}", c10::str(logits.sizes()),
                     c10::str(labels.sizes()), c10::toString(labels.scalar_type())),
              "logits are rows x classes, labels have as many elements as rows, int64");
}

// By LibTorch's op, for any type and device.
Tensor plain_cross_entropy(const Tensor& logits, const Tensor& labels, int64_t reduction,
                           int64_t ignore_index, double smoothing) {
  return at::cross_entropy_loss(logits, labels, {}, reduction, ignore_index, smoothing);
}

Two cross_entropy_kernel(const Tensor& logits_, const Tensor& labels_, int64_t reduction,
                         int64_t ignore_index, double smoothing, bool gradient) {
  check_cross_entropy(logits_, labels_);
  if (!has_kernel(logits_)) {
    FLEET_ASSERT(!gradient, "of other types LibTorch's ops make the gradient");
    return {plain_cross_entropy(logits_, labels_, reduction, ignore_index, smoothing),
            at::empty({0}, logits_.options())};
  }
  const auto logits = logits_.contiguous();
  const auto labels = labels_.contiguous();
  const int64_t rows = logits.size(0), classes = logits.size(1);
  check_labels(labels, classes, ignore_index);
  const auto* const label = labels.const_data_ptr<int64_t>();
  const auto counted = rows - std::count(label, label + rows, ignore_index);
  const bool is_mean = reduction == at::Reduction::Mean;
  const double scale = is_mean ? 1.0 / static_cast<double>(counted) : 1.0;  // NaN where none is
  auto dlogits = at::empty({gradient ? rows : 0, classes}, logits.options());
  auto losses = at::empty({rows}, logits.options().dtype(torch::kFloat));
  if (rows > 0 && classes > 0) {
    const CrossEntropyArgs args{.logits = logits.const_data_ptr(),
                                .out = gradient ? dlogits.mutable_data_ptr() : nullptr,
                                .bias = nullptr,
                                .row_stride = classes,
                                .classes = classes,
                                .labels = label,
                                .ignore_index = ignore_index,
                                .smoothing = static_cast<float>(smoothing),
                                .scale = static_cast<float>(counted > 0 ? scale : 0),
                                .gradient = gradient,
                                .losses = losses.mutable_data_ptr<float>()};
    const auto kernel = layer_kernels().cross_entropy[kernel_of(logits)];
    parallel_ranges(rows, rows_per_thread(classes),
                    [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  }
  if (reduction == at::Reduction::None) return {losses, dlogits};
  const auto* const values = losses.const_data_ptr<float>();
  const double sum = std::accumulate(values, values + rows, 0.0);
  // 0 / 0 where no label counts, as LibTorch's.
  const double loss = is_mean && counted == 0 ? std::numeric_limits<double>::quiet_NaN() : sum;
  return {at::full({}, is_mean && counted > 0 ? loss * scale : loss, losses.options()), dlogits};
}

Two cross_entropy_meta(const Tensor& logits, const Tensor& labels, int64_t reduction,
                       int64_t ignore_index, double smoothing, bool gradient) {
  check_cross_entropy(logits, labels);
  const auto floats = logits.options().dtype(torch::kFloat);
  auto loss = reduction == at::Reduction::None ? at::empty({logits.size(0)}, floats)
                                               : at::empty({}, floats);
  return {loss, at::empty({gradient ? logits.size(0) : 0, logits.size(1)}, logits.options())};
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& logits, const Tensor& labels,
                               int64_t reduction, int64_t ignore_index, double smoothing) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [loss, dlogits] = cross_entropy_op().call(logits, labels, reduction, ignore_index,
                                                         smoothing, /*gradient=*/true);
    ctx->save_for_backward({dlogits});
    ctx->mark_non_differentiable({dlogits});
    return {loss, dlogits};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    refuse_second_order("cross_entropy");
    const auto dlogits = ctx->get_saved_variables()[0];
    const auto g = gradients[0].to(dlogits.scalar_type());
    variable_list result(5);
    result[0] = dlogits * (g.dim() == 1 ? g.unsqueeze(1) : g);
    return result;
  }
};

Two cross_entropy_autograd(const Tensor& logits, const Tensor& labels, int64_t reduction,
                           int64_t ignore_index, double smoothing, bool gradient) {
  check_cross_entropy(logits, labels);
  if (!has_kernel(logits)) {
    return {plain_cross_entropy(logits, labels, reduction, ignore_index, smoothing),
            at::empty({0}, logits.options())};
  }
  if (!at::GradMode::is_enabled() || !logits.requires_grad()) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return cross_entropy_op().call(logits, labels, reduction, ignore_index, smoothing, gradient);
  }
  const auto result =
      CrossEntropyFunction::apply(logits, labels, reduction, ignore_index, smoothing);
  return {result[0], result[1]};
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  register_fused_op(
      library,
      "cross_entropy(Tensor logits, Tensor labels, int reduction=1, int ignore_index=-100, "
      "float label_smoothing=0., bool gradient=False) -> (Tensor, Tensor)",
      {.randomness = OpProperties::Randomness::kNone}, cross_entropy_kernel,
      {.meta = cross_entropy_meta, .autograd = cross_entropy_autograd});
}

int64_t reduction_of(CrossEntropyOptions::Reduction reduction) {
  switch (reduction) {
    case CrossEntropyOptions::Reduction::kNone:
      return at::Reduction::None;
    case CrossEntropyOptions::Reduction::kMean:
      return at::Reduction::Mean;
    case CrossEntropyOptions::Reduction::kSum:
      return at::Reduction::Sum;
  }
  return at::Reduction::Mean;
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options) {
  return std::get<0>(cross_entropy_op().call(logits, labels, reduction_of(options.reduction),
                                             options.ignore_index, options.label_smoothing,
                                             /*gradient=*/false));
}

int64_t first_bad_label(const Tensor& labels, int64_t classes, int64_t ignore_index) {
  const auto* const values = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (values[i] != ignore_index && (values[i] < 0 || values[i] >= classes)) return i;
  }
  return -1;
}

void check_labels(const Tensor& labels, int64_t classes, int64_t ignore_index) {
  const int64_t row = first_bad_label(labels, classes, ignore_index);
  if (row < 0) return;
  throw Error("cross_entropy",
              format("label {} in row {} is outside of the {} classes",
                     labels.const_data_ptr<int64_t>()[row], row, classes),
              "check the data's vocabulary against the model's");
}

}  // namespace fleet::ops
