// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/product.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>

#include "fleet/core/parallel_chunks.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/torch/cast_rules.h"
#include "fleet/core/torch/interception.h"
#include "fleet/ops/attention_call.h"
#include "fleet/ops/kernels/layer_kernels.h"

namespace fleet::ops {
namespace {

using torch::Tensor;

std::atomic<ProductSource> g_source{ProductSource::kMeasured};

// Of the columns that are packed at a time: 16 MB.
constexpr int64_t kSlabFloats = int64_t{4} << 20;

// Elements of a row, or of a column, lie side by side.
Tensor with_a_dense_dimension(const Tensor& x) {
  return x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous();
}

// The stride of a dimension of one element may be anything.
int64_t row_stride_of(const Tensor& x) { return x.stride(1) == 1 ? x.stride(0) : 1; }
int64_t column_stride_of(const Tensor& x) { return x.stride(1) == 1 ? 1 : x.stride(1); }

void run_product(const Tensor& c, const Tensor& a_, const Tensor& b_, const Tensor& bias,
                 bool adds) {
  const auto& kernels = *layer_kernels().product;
  const auto a = with_a_dense_dimension(a_), b = with_a_dense_dimension(b_);
  const int64_t rows = a.size(0), depth = a.size(1), columns = b.size(1);
  const int64_t width = kernels.panel_columns;
  const int64_t slab = std::clamp(kSlabFloats / depth / width * width, width, columns);
  // Like the library's own buffers no memory of the net's.
  const auto panels = aligned_floats(kernels.panel_floats(slab, depth));
  ProductArgs args{.a = a.const_data_ptr<float>(),
                   .a_row_stride = row_stride_of(a),
                   .a_depth_stride = column_stride_of(a),
                   .b = nullptr,
                   .b_depth_stride = row_stride_of(b),
                   .b_column_stride = column_stride_of(b),
                   .panels = panels.get(),
                   .bias = nullptr,
                   .c = nullptr,
                   .c_stride = c.stride(0),
                   .columns = 0,
                   .depth = depth,
                   .adds = adds};
  constexpr int64_t kUnit = 8;  // rows of a tile
  for (int64_t first = 0; first < columns; first += slab) {
    args.columns = std::min(slab, columns - first);
    args.b = b.const_data_ptr<float>() + first * args.b_column_stride;
    args.bias = bias.defined() ? bias.const_data_ptr<float>() + first : nullptr;
    args.c = c.mutable_data_ptr<float>() + first;
    parallel_ranges((args.columns + width - 1) / width, 1,
                    [&](int64_t begin, int64_t end) { kernels.pack(args, begin, end); });
    parallel_ranges((rows + kUnit - 1) / kUnit, 1, [&](int64_t begin, int64_t end) {
      const auto scratch = aligned_floats(kernels.scratch());
      kernels.rows(args, scratch.get(), begin * kUnit, std::min(end * kUnit, rows));
    });
  }
}

double measure_speedup() {
  if (layer_kernels().product == nullptr) return 0;
  constexpr int64_t kSize = 512;
  constexpr int kRepetitions = 5;  // the first pays for what LibTorch sets up
  const compat::NoInterceptScope no_intercept;
  const compat::NoAutocastScope no_autocast;
  const torch::NoGradGuard no_grad;
  // Past the allocator: the first product may be one of a step within a budget, or on meta.
  const auto room = aligned_floats(3 * kSize * kSize);
  std::fill_n(room.get(), 3 * kSize * kSize, 0.5F);
  const auto matrix = [&](int64_t i) {
    return at::from_blob(room.get() + i * kSize * kSize, {kSize, kSize}, torch::kFloat);
  };
  const auto a = matrix(0), b = matrix(1).t();
  auto c = matrix(2);
  double own = std::numeric_limits<double>::infinity(), theirs = own;
  const auto seconds_of = [](const auto& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return seconds_since(start);
  };
  for (int i = 0; i < kRepetitions; ++i) {
    theirs = std::min(theirs, seconds_of([&] { at::mm_out(c, a, b); }));
    own = std::min(own, seconds_of([&] { run_product(c, a, b, {}, false); }));
  }
  return theirs / own;
}

bool is_fleets() {
  const auto source = g_source.load(std::memory_order_relaxed);
  if (source == ProductSource::kLibTorch || layer_kernels().product == nullptr) return false;
  constexpr double kNoise = 1.2;
  return source == ProductSource::kFleet || product_speedup() >= kNoise;
}

// Packing has to pay off.
bool is_large(int64_t rows, int64_t depth, int64_t columns) {
  return rows >= 32 && depth >= 32 && columns >= 32 && rows * depth * columns >= (1 << 20);
}

bool is_large_of_many(int64_t rows, int64_t depth, int64_t columns) {
  return rows >= 32 && depth >= 32 && columns >= 32 && rows * depth * columns >= (1 << 17);
}

bool takes(const Tensor& a, const Tensor& b, const Tensor& bias) {
  return a.is_cpu() && is_plain_float(a) && is_plain_float(b) && a.dim() == 2 && b.dim() == 2 &&
         a.size(1) == b.size(0) && is_large(a.size(0), a.size(1), b.size(1)) &&
         (!bias.defined() ||
          (is_plain_float(bias) && bias.dim() == 1 && bias.size(0) == b.size(1))) &&
         is_fleets();
}

}  // namespace

bool is_plain_float(const Tensor& x) {
  return x.defined() && (x.is_cpu() || x.is_meta()) && x.layout() == torch::kStrided &&
         x.has_storage() && x.scalar_type() == torch::kFloat && !x.is_neg() &&
         !x._is_zerotensor() && !x.unsafeGetTensorImpl()->is_python_dispatch() &&
         !x._fw_grad(/*level=*/0).defined();
}

void set_product_source(ProductSource source) { g_source = source; }

double product_speedup() {
  static const double speedup = measure_speedup();
  return speedup;
}

bool has_product(const Tensor& x, const Tensor& weight) {
  return is_plain_float(x) && is_plain_float(weight) && x.dim() > 0 && weight.dim() == 2 &&
         x.size(-1) == weight.size(1) && x.size(-1) > 0 &&
         is_large(x.numel() / x.size(-1), x.size(-1), weight.size(0)) && is_fleets();
}

Tensor product(const Tensor& a, const Tensor& b, const Tensor& bias) {
  if (!takes(a, b, bias)) return bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
  const auto c = at::empty({a.size(0), b.size(1)}, a.options());
  run_product(c, a, b, bias.defined() ? bias.contiguous() : bias, /*adds=*/false);
  return c;
}

void product_into(const Tensor& c, const Tensor& a, const Tensor& b, bool adds) {
  auto result = c;
  if (takes(a, b, {}) && is_plain_float(c) && c.stride(1) == 1) {
    run_product(c, a, b, {}, adds);
  } else if (adds) {
    result.addmm_(a, b);
  } else {
    at::mm_out(result, a, b);
  }
}

Tensor linear_product(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!x.is_cpu() || !has_product(x, weight) || (bias.defined() && !is_plain_float(bias))) {
    return at::linear(x, weight,
                      bias.defined() ? std::optional<Tensor>(bias) : std::optional<Tensor>());
  }
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return product(x.reshape({-1, x.size(-1)}), weight.t(), bias).view(sizes);
}

bool has_batched_product(const Tensor& a, const Tensor& b) {
  const int64_t dims = a.defined() ? a.dim() : 0;
  if (!is_plain_float(a) || !is_plain_float(b) || (dims != 3 && dims != 4) || b.dim() != dims ||
      a.sizes().slice(0, dims - 2) != b.sizes().slice(0, dims - 2) || a.size(-1) != b.size(-2)) {
    return false;
  }
  const int64_t rows = a.size(-2), depth = a.size(-1), columns = b.size(-1);
  if (a.numel() == 0 || !is_large_of_many(rows, depth, columns)) return false;
  return a.numel() / (rows * depth) >= chunk_count() && is_fleets();
}

Tensor batched_product(const Tensor& a_, const Tensor& b_) {
  if (!a_.is_cpu() || !has_batched_product(a_, b_)) return at::matmul(a_, b_);
  const auto four = [](const Tensor& x) { return x.dim() == 4 ? x : x.unsqueeze(0); };
  const auto dense = [](const Tensor& x) {
    return x.stride(-1) == 1 || x.stride(-2) == 1 ? x : x.contiguous();
  };
  const auto a = four(dense(a_)), b = four(dense(b_));
  auto sizes = a_.sizes().vec();
  sizes.back() = b.size(3);
  const auto c = at::empty(sizes, a.options());
  const int64_t rows = a.size(2), depth = a.size(3), columns = b.size(3), inner = a.size(1);
  const auto& kernels = *layer_kernels().product;
  const auto row_stride = [](const Tensor& x) { return x.stride(3) == 1 ? x.stride(2) : 1; };
  const auto column_stride = [](const Tensor& x) { return x.stride(3) == 1 ? 1 : x.stride(3); };
  const ProductArgs shared{.a = a.const_data_ptr<float>(),
                           .a_row_stride = row_stride(a),
                           .a_depth_stride = column_stride(a),
                           .b = b.const_data_ptr<float>(),
                           .b_depth_stride = row_stride(b),
                           .b_column_stride = column_stride(b),
                           .panels = nullptr,
                           .bias = nullptr,
                           .c = c.mutable_data_ptr<float>(),
                           .c_stride = columns,
                           .columns = columns,
                           .depth = depth,
                           .adds = false};
  const int64_t panels = (columns + kernels.panel_columns - 1) / kernels.panel_columns;
  parallel_ranges(a.size(0) * inner, 1, [&](int64_t begin, int64_t end) {
    const auto room = aligned_floats(kernels.panel_floats(columns, depth));
    const auto scratch = aligned_floats(kernels.scratch());
    for (int64_t i = begin; i < end; ++i) {
      auto args = shared;
      args.a += i / inner * a.stride(0) + i % inner * a.stride(1);
      args.b += i / inner * b.stride(0) + i % inner * b.stride(1);
      args.c += i * rows * columns;
      args.panels = room.get();
      kernels.pack(args, 0, panels);
      kernels.rows(args, scratch.get(), 0, rows);
    }
  });
  return c;
}

double product_flops(const std::vector<torch::Tensor>& arguments, double result) {
  if (arguments.empty() || arguments[0].dim() == 0) return 0;
  return 2 * result * static_cast<double>(arguments[0].size(-1));
}

}  // namespace fleet::ops
