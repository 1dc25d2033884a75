// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/sync_batch_norm.h"

#include <ATen/core/dispatch/Dispatcher.h>
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
  Tensor mean, var;  // [C], over all ranks; var is biased
  double count = 0;
};

// Means and variances of unequal parts combine exactly (Chan, Golub, LeVeque 1979); in double,
// since C is small.
Statistics over_all_ranks(comm::Communicator& comm, const Tensor& x) {
  const auto dims = all_but_channels(x);
  const auto [var, mean] = torch::var_mean(x.to(torch::kFloat), dims, /*unbiased=*/false);
  const auto count = static_cast<double>(x.numel()) / static_cast<double>(x.size(1));
  const auto own = torch::cat({mean.to(torch::kDouble), var.to(torch::kDouble),
                               torch::full({1}, count, mean.options().dtype(torch::kDouble))});
  const auto all = comm.all_gather(own, "batch norm statistics");
  const auto channels = x.size(1);
  const auto means = all.narrow(1, 0, channels);
  const auto variances = all.narrow(1, channels, channels);
  const auto counts = all.narrow(1, 2 * channels, 1);
  Statistics result;
  result.count = counts.sum().item<double>();
  const auto shares = counts / result.count;
  const auto whole_mean = (means * shares).sum(0);
  result.var = ((variances + (means - whole_mean).square()) * shares).sum(0).to(torch::kFloat);
  result.mean = whole_mean.to(torch::kFloat);
  return result;
}

// The part that happens once, however often the rest is computed again: nobody who records ops sees
// it, and what it returns comes from outside.
Statistics synced(comm::Communicator& comm, const Tensor& x, const Tensor& running_mean,
                  const Tensor& running_var, double momentum) {
  const compat::NoInterceptScope unseen;
  auto stats = over_all_ranks(comm, x);
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

struct SyncBatchNorm : torch::autograd::Function<SyncBatchNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias, const Tensor& running_mean,
                        const Tensor& running_var, double momentum, double eps,
                        std::shared_ptr<comm::Communicator> comm) {
    const auto stats = synced(*comm, x, running_mean, running_var, momentum);
    const auto invstd = (stats.var + eps).rsqrt();
    const auto scale = weight ? invstd * weight->to(torch::kFloat) : invstd;
    auto shift = -stats.mean * scale;
    if (bias) shift = shift + bias->to(torch::kFloat);
    ctx->save_for_backward({x, weight.value_or(Tensor()), stats.mean, invstd});
    ctx->saved_data["count"] = stats.count;
    ctx->saved_data["has_bias"] = bias.has_value();
    ctx->saved_data["comm"] =
        c10::IValue::make_capsule(c10::make_intrusive<CommHolder>(std::move(comm)));
    return torch::addcmul(per_channel(shift, x), x.to(torch::kFloat), per_channel(scale, x))
        .to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& outputs) {
    const auto saved = ctx->get_saved_variables();
    const auto& x = saved[0];
    const auto& weight = saved[1];
    const auto& mean = saved[2];
    const auto& invstd = saved[3];
    const auto holder =
        c10::static_intrusive_pointer_cast<CommHolder>(ctx->saved_data["comm"].toCapsule());
    const double count = ctx->saved_data["count"].toDouble();

    const auto dims = all_but_channels(x);
    const auto dy = outputs[0].to(torch::kFloat);
    const auto centred = x.to(torch::kFloat) - per_channel(mean, x);
    const auto sum_dy = dy.sum(dims);
    const auto sum_dy_centred = (dy * centred).sum(dims);
    auto sums = torch::stack({sum_dy, sum_dy_centred});
    holder->comm->all_reduce(sums, comm::ReduceOp::kSum, "batch norm gradients");

    const auto scale = weight.defined() ? invstd * weight.to(torch::kFloat) : invstd;
    const auto mean_dy = sums[0] / count;
    const auto slope = sums[1] / count * invstd.square();
    const auto dx =
        (dy - per_channel(mean_dy, x) - centred * per_channel(slope, x)) * per_channel(scale, x);
    const auto dweight =
        weight.defined() ? (sum_dy_centred * invstd).to(weight.scalar_type()) : Tensor();
    const auto dbias = ctx->saved_data["has_bias"].toBool()
                           ? sum_dy.to(weight.defined() ? weight.scalar_type() : torch::kFloat)
                           : Tensor();
    return {dx.to(x.scalar_type()), dweight, dbias, {}, {}, {}, {}, {}};
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
