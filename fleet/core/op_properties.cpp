// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/op_properties.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "fleet/core/tensor_memory.h"

namespace fleet {
namespace {

using Tensors = std::vector<torch::Tensor>;

double last_size(const torch::Tensor& x) {
  return x.dim() > 0 ? static_cast<double>(x.size(-1)) : 0;
}

bool are_strided(const Tensors& in, size_t count) {
  return in.size() >= count && std::ranges::all_of(in, compat::is_strided);
}

// a (m x k) times b.
double product(const Tensors& in, double result) {
  return are_strided(in, 2) ? 2 * result * last_size(in[0]) : 0;
}

// The same behind a bias.
double product_after_bias(const Tensors& in, double result) {
  return are_strided(in, 2) ? 2 * result * last_size(in[1]) : 0;
}

double convolution(const Tensors& in, double result) {
  if (!are_strided(in, 2) || in[1].dim() == 0) return 0;
  return 2 * result * static_cast<double>(in[1].numel()) /
         static_cast<double>(std::max<int64_t>(in[1].size(0), 1));
}

// N x heads x S x d
double attention(const Tensors& in, double /*result*/) {
  if (!are_strided(in, 2) || in[1].dim() < 2) return 0;
  return 4 * static_cast<double>(in[0].numel()) * static_cast<double>(in[1].size(-2));
}

struct Table {
  std::mutex mutex;
  std::unordered_map<std::string, OpProperties> ops;

  static Table& get() {
    static auto& table = *new Table();  // ops are recorded while the program ends too
    return table;
  }

 private:
  Table() {
    for (const char* name : {"linear", "matmul", "mm", "bmm", "mv", "dot"})
      aten(name).flops = product;
    for (const char* name : {"addmm", "baddbmm"}) aten(name).flops = product_after_bias;
    for (const char* name : {"conv1d", "conv2d", "conv3d", "convolution", "_convolution"}) {
      aten(name).flops = convolution;
    }
    aten("scaled_dot_product_attention").flops = attention;
    aten("dropout").mask_save = 0;
    for (const char* name :
         {"scaled_dot_product_attention", "_scaled_dot_product_attention_math", "lstm", "gru",
          "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
          "einsum", "cross_entropy_loss", "multi_head_attention"}) {
      aten(name).is_decomposed = true;
    }
  }
  OpProperties& aten(const char* name) { return ops[std::string("aten::") + name]; }
};

}  // namespace

bool register_op(const std::string& name, const OpProperties& properties) {
  auto& table = Table::get();
  const std::scoped_lock lock(table.mutex);
  table.ops[name] = properties;
  return true;
}

OpProperties op_properties(const std::string& name) {
  auto& table = Table::get();
  const std::scoped_lock lock(table.mutex);
  const auto place = table.ops.find(name);
  return place == table.ops.end() ? OpProperties{} : place->second;
}

}  // namespace fleet
