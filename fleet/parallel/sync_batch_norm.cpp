// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/sync_batch_norm.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local std::shared_ptr<comm::Communicator> t_comm;

struct CommHolder : torch::CustomClassHolder {
  explicit CommHolder(std::shared_ptr<comm::Communicator> group) : comm(std::move(group)) {}
  std::shared_ptr<comm::Communicator> comm;
};

std::vector<int64_t> all_but_channels(const Tensor& x) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < x.dim(); ++d) dims.push_back(d);
  return dims;
}

// [C] as [1, C, 1, ...], to meet x of any rank.
Tensor per_channel(const Tensor& v, const Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = v.numel();
  return v.view(shape);
}

struct Statistics {
  Tensor mean, var, invstd;  // [C], over all ranks; var is biased
  double count = 0;
};

// float but for double: the type that LibTorch computes batch norm in, and that of its statistics.
torch::ScalarType precise_type(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

Tensor as_type_of(const Tensor& tensor, torch::ScalarType type) {
  return tensor.defined() ? tensor.to(type) : tensor;
}

// Mean and biased variance of this rank's samples, by LibTorch's own pass where it has one.
std::tuple<Tensor, Tensor> of_this_rank(const Tensor& x) {
  const auto options = x.options().dtype(precise_type(x));
  if (!x.is_cpu()) {
    const auto [var, mean] =
        torch::var_mean(x.to(precise_type(x)), all_but_channels(x), /*unbiased=*/false);
    return {mean, var};
  }
  // Running statistics that nobody reads: their type makes the result precise for bf16 too.
  const auto unread = torch::zeros({2, x.size(1)}, options);
  return at::batch_norm_update_stats(x.contiguous(x.suggest_memory_format()), unread[0], unread[1],
                                     /*momentum=*/0);
}

// Means and variances of unequal parts combine exactly (Chan, Golub, LeVeque 1979); in double,
// since C is small.
Statistics over_all_ranks(comm::Communicator& comm, const Tensor& x, double eps) {
  const auto channels = x.size(1);
  const auto [mean, var] = of_this_rank(x);
  const auto own = torch::empty({2 * channels + 1}, torch::kDouble);
  own.narrow(0, 0, channels).copy_(mean);
  own.narrow(0, channels, channels).copy_(var);
  own.mutable_data_ptr<double>()[2 * channels] =
      static_cast<double>(x.numel()) / static_cast<double>(channels);
  const auto all = comm.all_gather(own, "batch norm statistics");

  const auto ranks = all.size(0);
  const auto row = [&](int64_t rank) {
    return all.const_data_ptr<double>() + rank * (2 * channels + 1);
  };
  Statistics result;
  for (int64_t rank = 0; rank < ranks; ++rank) result.count += row(rank)[2 * channels];
  const auto merged = torch::empty({3, channels}, torch::kDouble);  // mean, var, invstd
  auto* const out = merged.mutable_data_ptr<double>();
  for (int64_t c = 0; c < channels; ++c) {
    double whole_mean = 0, whole_var = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      whole_mean += row(rank)[c] * (row(rank)[2 * channels] / result.count);
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const double apart = row(rank)[c] - whole_mean;
      whole_var +=
          (row(rank)[channels + c] + apart * apart) * (row(rank)[2 * channels] / result.count);
    }
    out[c] = whole_mean;
    out[channels + c] = whole_var;
    out[2 * channels + c] = 1 / std::sqrt(whole_var + eps);
  }
  const auto rows = merged.to(x.device(), precise_type(x));
  result.mean = rows[0];
  result.var = rows[1];
  result.invstd = rows[2];
  return result;
}

// The part that happens once, however often the rest is computed again: nobody who records ops sees
// it, and what it returns comes from outside.
Statistics synced(comm::Communicator& comm, const Tensor& x, const Tensor& running_mean,
                  const Tensor& running_var, double momentum, double eps) {
  const compat::NoInterceptScope unseen;
  auto stats = over_all_ranks(comm, x, eps);
  if (stats.count < 2) {
    throw Error("sync_batch_norm", "one value per channel over all ranks has no variance",
                "use a larger batch");
  }
  if (running_mean.defined()) {
    running_mean.lerp_(stats.mean.to(running_mean.scalar_type()), momentum);
  }
  if (running_var.defined()) {
    const auto unbiased = stats.var * (stats.count / (stats.count - 1));
    running_var.lerp_(unbiased.to(running_var.scalar_type()), momentum);
  }
  return stats;
}

// What the gradient of the input takes of a channel.
struct ChannelConstants {
  Tensor mean, mean_dy, slope, scale;
};

// dx = (dy - mean_dy - (x - mean) slope) scale, in one pass; x and dx have one layout.
template <typename T>
__attribute__((optimize("O3"))) void input_gradient(const Tensor& x, const Tensor& dy,
                                                    const ChannelConstants& constants,
                                                    const Tensor& dx) {
  const auto channels = x.size(1);
  const T* const mean = constants.mean.const_data_ptr<T>();
  const T* const mean_dy = constants.mean_dy.const_data_ptr<T>();
  const T* const slope = constants.slope.const_data_ptr<T>();
  const T* const scale = constants.scale.const_data_ptr<T>();
  const T* const x_data = x.const_data_ptr<T>();
  const T* const dy_data = dy.const_data_ptr<T>();
  T* const dx_data = dx.mutable_data_ptr<T>();
  const auto plane = x.numel() / (x.size(0) * channels);
  if (plane == 1 || !x.is_contiguous()) {  // channels-last: rows of all channels
    const auto rows = x.numel() / channels;
    at::parallel_for(0, rows, std::max<int64_t>(1, at::internal::GRAIN_SIZE / channels),
                     [=](int64_t begin, int64_t end) {
                       for (int64_t row = begin; row < end; ++row) {
                         const T* __restrict in = x_data + row * channels;
                         const T* __restrict gradient = dy_data + row * channels;
                         T* __restrict out = dx_data + row * channels;
                         for (int64_t c = 0; c < channels; ++c) {
                           out[c] =
                               (gradient[c] - mean_dy[c] - (in[c] - mean[c]) * slope[c]) * scale[c];
                         }
                       }
                     });
    return;
  }
  at::parallel_for(0, x.size(0) * channels, std::max<int64_t>(1, at::internal::GRAIN_SIZE / plane),
                   [=](int64_t begin, int64_t end) {
                     for (int64_t p = begin; p < end; ++p) {
                       const auto c = p % channels;
                       const T* __restrict in = x_data + p * plane;
                       const T* __restrict gradient = dy_data + p * plane;
                       T* __restrict out = dx_data + p * plane;
                       for (int64_t i = 0; i < plane; ++i) {
                         out[i] =
                             (gradient[i] - mean_dy[c] - (in[i] - mean[c]) * slope[c]) * scale[c];
                       }
                     }
                   });
}

Tensor input_gradient(const Tensor& x, const Tensor& dy, const ChannelConstants& constants) {
  if (x.is_cpu() && x.scalar_type() == precise_type(x) && x.numel() > 0) {
    auto dx = torch::empty_like(x);
    x.scalar_type() == torch::kDouble ? input_gradient<double>(x, dy, constants, dx)
                                      : input_gradient<float>(x, dy, constants, dx);
    return dx;
  }
  const auto type = precise_type(x);
  const auto centred = x.to(type) - per_channel(constants.mean, x);
  return ((dy.to(type) - per_channel(constants.mean_dy, x) -
           centred * per_channel(constants.slope, x)) *
          per_channel(constants.scale, x))
      .to(x.scalar_type());
}

// sum(dy) and sum(dy (x - mean) invstd) of this rank's samples, per channel: the gradients of bias
// and weight.
std::tuple<Tensor, Tensor> gradient_sums(const Tensor& x, const Tensor& dy, const Tensor& mean,
                                         const Tensor& invstd) {
  if (x.is_cpu()) {
    const auto sums =
        at::native_batch_norm_backward(dy, x, {}, {}, {}, mean, invstd,
                                       /*train=*/true, /*eps=*/0, {false, true, true});
    return {std::get<2>(sums), std::get<1>(sums)};
  }
  const auto dims = all_but_channels(x);
  const auto type = precise_type(x);
  const auto centred = x.to(type) - per_channel(mean, x);
  return {dy.to(type).sum(dims), (dy.to(type) * centred).sum(dims) * invstd};
}

struct SyncBatchNorm : torch::autograd::Function<SyncBatchNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias, const Tensor& running_mean,
                        const Tensor& running_var, double momentum, double eps,
                        std::shared_ptr<comm::Communicator> comm) {
    const auto stats = synced(*comm, x, running_mean, running_var, momentum, eps);
    const auto precise_weight = as_type_of(weight.value_or(Tensor()), precise_type(x));
    const auto precise_bias = as_type_of(bias.value_or(Tensor()), precise_type(x));
    ctx->save_for_backward({x, weight.value_or(Tensor()), stats.mean, stats.invstd});
    ctx->saved_data["count"] = stats.count;
    ctx->saved_data["bias_type"] = bias ? static_cast<int64_t>(bias->scalar_type()) : int64_t{-1};
    ctx->saved_data["comm"] =
        c10::IValue::make_capsule(c10::make_intrusive<CommHolder>(std::move(comm)));
    // As in evaluation, with the statistics of this batch.
    return std::get<0>(at::native_batch_norm(x, precise_weight, precise_bias, stats.mean, stats.var,
                                             /*training=*/false, /*momentum=*/0, eps));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& outputs) {
    const auto saved = ctx->get_saved_variables();
    const auto layout = saved[0].suggest_memory_format();
    const auto x = saved[0].contiguous(layout);
    const auto dy = outputs[0].to(x.scalar_type()).contiguous(layout);
    const auto& weight = saved[1];
    const auto& mean = saved[2];
    const auto& invstd = saved[3];
    const auto holder =
        c10::static_intrusive_pointer_cast<CommHolder>(ctx->saved_data["comm"].toCapsule());
    const double count = ctx->saved_data["count"].toDouble();

    const auto [sum_dy, sum_dy_normed] = gradient_sums(x, dy, mean, invstd);
    const auto sums = torch::stack({sum_dy, sum_dy_normed});
    holder->comm->all_reduce(sums, comm::ReduceOp::kSum, "batch norm gradients");
    const auto means = sums / count;
    const auto dx = input_gradient(
        x, dy,
        {.mean = mean,
         .mean_dy = means[0],
         .slope = means[1] * invstd,
         .scale = weight.defined() ? invstd * weight.to(invstd.scalar_type()) : invstd});

    const auto dweight = weight.defined() ? sum_dy_normed.to(weight.scalar_type()) : Tensor();
    const auto bias_type = ctx->saved_data["bias_type"].toInt();
    const auto dbias =
        bias_type >= 0 ? sum_dy.to(static_cast<torch::ScalarType>(bias_type)) : Tensor();
    return {dx, dweight, dbias, {}, {}, {}, {}, {}};
  }
};

// An argument of batch_norm; a missing tensor is undefined.
Tensor tensor_argument(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : Tensor();
}

std::optional<Tensor> if_defined(const Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn)
void batch_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr size_t kArguments = 9;
  const auto* args = stack->data() + (stack->size() - kArguments);
  const bool training = args[5].toBool();
  if (!training || !t_comm || t_comm->size() == 1) return compat::call_observed(op, stack);
  auto result = SyncBatchNorm::apply(args[0].toTensor(), if_defined(tensor_argument(args[1])),
                                     if_defined(tensor_argument(args[2])), tensor_argument(args[3]),
                                     tensor_argument(args[4]), args[6].toDouble(),
                                     args[7].toDouble(), t_comm);
  stack->resize(stack->size() - kArguments);
  stack->emplace_back(std::move(result));
}

// batch_norm_relu(x, residual, weight, bias, running_mean, running_var, training, momentum, eps,
// relu): in separate ops, for the statistics come from outside.
void batch_norm_relu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr size_t kArguments = 10;
  const auto* args = stack->data() + (stack->size() - kArguments);
  const bool training = args[6].toBool();
  if (!training || !t_comm || t_comm->size() == 1) return compat::call_observed(op, stack);
  const auto x = args[0].toTensor();
  auto y = SyncBatchNorm::apply(x, if_defined(tensor_argument(args[2])),
                                if_defined(tensor_argument(args[3])), tensor_argument(args[4]),
                                tensor_argument(args[5]), args[7].toDouble(), args[8].toDouble(),
                                t_comm);
  if (const auto residual = tensor_argument(args[1]); residual.defined()) y = y + residual;
  if (args[9].toBool()) y = y.relu();
  const auto none = torch::empty({0}, x.options());  // as for types without a kernel
  stack->resize(stack->size() - kArguments);
  for (const auto& result : {y, none, none}) stack->emplace_back(result);
}

// LibTorch computes instance norm by calling batch norm on a reshaped input; that one is not to
// be synced.
void instance_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  compat::call_observed(op, stack);
}

}  // namespace

SyncBatchNormScope::SyncBatchNormScope(std::shared_ptr<comm::Communicator> comm)
    : previous_(std::exchange(t_comm, std::move(comm))) {
  if (t_comm && t_comm->size() > 1) intercept_.emplace();
}

SyncBatchNormScope::~SyncBatchNormScope() { t_comm = std::move(previous_); }

}  // namespace fleet

TORCH_LIBRARY_IMPL(aten, FLEET_INTERCEPT_KEY, library) {
  library.impl("batch_norm", torch::CppFunction::makeFromBoxedFunction<&fleet::batch_norm>());
  library.impl("instance_norm", torch::CppFunction::makeFromBoxedFunction<&fleet::instance_norm>());
}

TORCH_LIBRARY_IMPL(fleet, FLEET_INTERCEPT_KEY, library) {
  library.impl("batch_norm_relu",
               torch::CppFunction::makeFromBoxedFunction<&fleet::batch_norm_relu>());
}
