// SPDX-License-Identifier: Apache-2.0
// Shapes of what LibTorch's C++ has no meta kernel for: it keeps these in Python. With them the
// applications, and most other models, run forward and backward on the meta device, where a plan
// for a machine that is not here is made. Each is registered only if LibTorch has none.
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace fleet::ops {
namespace {

using torch::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  auto sizes = x.sizes().vec();
  sizes[static_cast<size_t>(c10::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return x.new_empty(sizes);
}

Tensor embedding_dense_backward(const Tensor& gradient, const Tensor& tokens, c10::SymInt count,
                                c10::SymInt padding, bool scaled) {
  return gradient.new_empty({count.expect_int(), gradient.size(-1)});
}

std::tuple<Tensor, Tensor, Tensor> native_layer_norm(const Tensor& x, c10::SymIntArrayRef shape,
                                                     const OptionalTensor& weight,
                                                     const OptionalTensor& bias, double eps) {
  auto kept = x.sizes().vec();
  std::fill(kept.end() - static_cast<int64_t>(shape.size()), kept.end(), 1);
  const auto type = x.options().dtype(at::toOpMathType(x.scalar_type()));
  return {at::empty(x.sizes(), x.options()), at::empty(kept, type), at::empty(kept, type)};
}

// A gradient of the shape of `like`, if it is wanted and there is such a thing.
Tensor wanted(bool is_wanted, const Tensor& like) {
  return is_wanted && like.defined() ? at::empty_like(like) : Tensor();
}

std::tuple<Tensor, Tensor, Tensor> native_layer_norm_backward(
    const Tensor& gradient, const Tensor& x, c10::SymIntArrayRef shape, const Tensor& mean,
    const Tensor& rstd, const OptionalTensor& weight, const OptionalTensor& bias,
    std::array<bool, 3> mask) {
  return {wanted(mask[0], x), wanted(mask[1], weight.value_or(Tensor())),
          wanted(mask[2], bias.value_or(Tensor()))};
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm(const Tensor& x, const OptionalTensor& weight,
                                                     const OptionalTensor& bias,
                                                     const OptionalTensor& running_mean,
                                                     const OptionalTensor& running_var,
                                                     bool training, double momentum, double eps) {
  const auto type = x.options()
                        .dtype(at::toOpMathType(x.scalar_type()))
                        .memory_format(torch::MemoryFormat::Contiguous);
  const int64_t kept = training ? x.size(1) : 0;
  return {at::empty_like(x), at::empty({kept}, type), at::empty({kept}, type)};
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm_backward(
    const Tensor& gradient, const Tensor& x, const OptionalTensor& weight,
    const OptionalTensor& running_mean, const OptionalTensor& running_var,
    const OptionalTensor& mean, const OptionalTensor& invstd, bool training, double eps,
    std::array<bool, 3> mask) {
  const auto per_channel = weight.value_or(Tensor());
  return {wanted(mask[0], x), wanted(mask[1], per_channel), wanted(mask[2], per_channel)};
}

Tensor convolution(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                   c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  std::vector<int64_t> sizes{x.size(0),
                             transposed ? weight.size(1) * groups.expect_int() : weight.size(0)};
  for (int64_t d = 2; d < x.dim(); ++d) {
    const auto at = [&](c10::SymIntArrayRef list) {
      return list[list.size() == 1 ? 0 : static_cast<size_t>(d - 2)].expect_int();
    };
    const int64_t reach = at(dilation) * (weight.size(d) - 1);
    sizes.push_back(transposed ? (x.size(d) - 1) * at(stride) - 2 * at(padding) + reach +
                                     at(output_padding) + 1
                               : (x.size(d) + 2 * at(padding) - reach - 1) / at(stride) + 1);
  }
  const auto layout =
      x.dim() == 4 && (x.suggest_memory_format() == at::MemoryFormat::ChannelsLast ||
                       weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast)
          ? at::MemoryFormat::ChannelsLast
          : at::MemoryFormat::Contiguous;
  return at::empty(sizes, x.options().memory_format(layout));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& x, const Tensor& weight,
    at::OptionalSymIntArrayRef bias_sizes, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> mask) {
  return {wanted(mask[0], x), wanted(mask[1], weight),
          mask[2] ? gradient.new_empty({gradient.size(1)}) : Tensor()};
}

Tensor adaptive_avg_pool2d(const Tensor& x, c10::SymIntArrayRef size) {
  auto sizes = x.sizes().vec();
  sizes[sizes.size() - 2] = size[0].expect_int();
  sizes[sizes.size() - 1] = size[1].expect_int();
  return at::empty(sizes, x.options().memory_format(x.suggest_memory_format()));
}

Tensor adaptive_avg_pool2d_backward(const Tensor& gradient, const Tensor& x) {
  return at::empty_like(x);
}

Tensor relu(const Tensor& x) { return at::empty_like(x); }

Tensor flip(const Tensor& x, at::IntArrayRef /*dims*/) { return at::empty_like(x); }

Tensor roll(const Tensor& x, c10::SymIntArrayRef /*shifts*/, at::IntArrayRef /*dims*/) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(x.sizes(), y.sizes()));
  return at::empty(sizes, condition.options().dtype(at::result_type(x, y)));
}

Tensor& where_out(const Tensor& condition, const Tensor& x, const Tensor& y, Tensor& out) {
  out.resize_(at::infer_size(condition.sizes(), at::infer_size(x.sizes(), y.sizes())));
  return out;
}

std::tuple<Tensor, Tensor> log_sigmoid_forward(const Tensor& x) {
  return {at::empty_like(x), at::empty_like(x)};
}

Tensor log_sigmoid_backward(const Tensor& gradient, const Tensor& /*x*/, const Tensor& /*buffer*/) {
  return at::empty_like(gradient);
}

// Tensors without numbers are equal if they are one.
bool equal(const Tensor& x, const Tensor& y) { return x.is_same(y); }

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  const auto add = [&](const std::string& name, auto kernel) {
    const auto dot = name.find('.');
    const auto overload = dot == name.npos ? "" : name.substr(dot + 1);
    const auto op = c10::Dispatcher::singleton().findOp({"aten::" + name.substr(0, dot), overload});
    if (op && !op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
      library.impl(name.c_str(), kernel);
    }
  };
  add("relu", TORCH_FN(relu));
  add("flip", TORCH_FN(flip));
  add("roll", TORCH_FN(roll));
  add("where.self", TORCH_FN(where));
  add("where.self_out", TORCH_FN(where_out));
  add("log_sigmoid_forward", TORCH_FN(log_sigmoid_forward));
  add("log_sigmoid_backward", TORCH_FN(log_sigmoid_backward));
  add("equal", TORCH_FN(equal));
  add("index_select", TORCH_FN(index_select));
  add("embedding_dense_backward", TORCH_FN(embedding_dense_backward));
  add("native_layer_norm", TORCH_FN(native_layer_norm));
  add("native_layer_norm_backward", TORCH_FN(native_layer_norm_backward));
  add("native_batch_norm", TORCH_FN(native_batch_norm));
  add("native_batch_norm_backward", TORCH_FN(native_batch_norm_backward));
  add("convolution", TORCH_FN(convolution));
  add("convolution_backward", TORCH_FN(convolution_backward));
  add("_adaptive_avg_pool2d", TORCH_FN(adaptive_avg_pool2d));
  add("_adaptive_avg_pool2d_backward", TORCH_FN(adaptive_avg_pool2d_backward));
}

}  // namespace
}  // namespace fleet::ops
