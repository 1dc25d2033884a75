// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/torch/graph_leaves.h"

#include <unordered_set>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/variable.h>

namespace fleet::compat {

std::vector<torch::Tensor> leaves_of(const torch::Tensor& root) {
  using torch::autograd::AccumulateGrad;
  using torch::autograd::Node;
  std::vector<torch::Tensor> leaves;
  if (!root.requires_grad()) return leaves;
  const auto first = torch::autograd::impl::gradient_edge(root);
  std::vector<Node*> open{first.function.get()};
  std::unordered_set<Node*> seen{open.begin(), open.end()};
  while (!open.empty()) {
    auto* const node = open.back();
    open.pop_back();
    if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(node)) {
      leaves.push_back(leaf->variable);
    }
    for (const auto& edge : node->next_edges()) {
      auto* const next = edge.function.get();
      if (next && seen.insert(next).second) open.push_back(next);
    }
  }
  return leaves;
}

}  // namespace fleet::compat
