// SPDX-License-Identifier: Apache-2.0
// Tensors that no tape can record as others: sparse, opaque, nested, quantized, complex, and of
// memory that no tensor owns. Under every policy, against plain autograd: bit for bit.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fleet/memory/checkpoint.h"
#include "fleet/memory/tape/tape.h"

#include "tests/memory/closures.h"

namespace fleet::memory {
namespace {

using namespace closure_test;  // NOLINT

using ForeignTensors = Closures;

TEST_F(ForeignTensors, SparseTensorsStayAsTheyAre) {
  const auto x = leaf({6, 4});
  const auto dense = torch::randn({5, 6}) * (torch::rand({5, 6}) > 0.5);
  const auto sparse = dense.to_sparse();
  const auto compressed = dense.to_sparse_csr();
  compare(
      [&] {
        auto y = checkpoint(torch::mm(sparse, x).tanh(), "first");
        y = y * torch::mm(sparse, x * 2).sigmoid();
        y = checkpoint(y, "second") + torch::mm(compressed, x).tanh();
        // Made inside, and with a gradient of its own.
        const auto inner = torch::where(y > 0, y, 0).to_sparse();
        return torch::mm(inner, y.t().tanh()).square().sum();
      },
      {x});
}

// A replay starts from the values that it had, and does not write to them once more.
TEST_F(ForeignTensors, SparseTensorsMayBeWrittenToAfterTheyWereRead) {
  const auto x = leaf({6, 4});
  const auto dense = torch::randn({5, 6}) * (torch::rand({5, 6}) > 0.5);
  Tensor sparse;
  const auto loss = [&] {
    auto y = checkpoint(torch::mm(sparse, x.detach()) * torch::mm(dense, x).tanh(), "first");
    {
      const torch::NoGradGuard no_grad;
      sparse.mul_(0.5);
      sparse._values().add_(1);
    }
    return (torch::mm(sparse, y.t().mm(y).narrow(0, 0, 4).repeat({2, 1}).narrow(0, 0, 6)) + y.sum())
        .tanh()
        .sum();
  };
  compare(
      [&] {
        sparse = dense.to_sparse();
        return loss();
      },
      {x});
}

TEST_F(ForeignTensors, OpaqueNestedAndQuantizedTensorsStayAsTheyAre) {
  const auto x = leaf({6, 4});
  compare(
      [&] {
        auto y = checkpoint(torch::relu((x * 2).to_mkldnn()).to_dense().tanh(), "mkldnn");
        y = y * y.sigmoid();
        const auto pieces = torch::_nested_tensor_from_tensor_list({y, y.narrow(0, 0, 3).tanh()});
        checkpoint(y, "nested");
        y = y + torch::nested_to_padded_tensor(pieces, 0.0).sum(0);
        const auto rough = torch::quantize_per_tensor(y.detach(), 0.1, 2, torch::kQInt8);
        checkpoint(y, "quantized");
        return (y * torch::dequantize(rough).tanh()).square().sum();
      },
      {x});
}

// The usual way to pass own numbers to a forward.
TEST_F(ForeignTensors, MemoryThatNoTensorOwnsIsNotReadByReplays) {
  const auto x = leaf({6, 4});
  std::vector<float> numbers(24);
  between_ = [&] { std::ranges::fill(numbers, 1e9F); };  // as good as gone
  compare(
      [&] {
        for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i) * 0.1F;
        const auto mine = torch::from_blob(numbers.data(), {6, 4});
        auto y = checkpoint((x * mine.clone()).tanh(), "first");
        y = y * (mine.view({4, 6}).t() + y).sigmoid();
        checkpoint(y, "second");
        return torch::matmul(y, torch::matmul(mine.t(), y).tanh()).square().sum();
      },
      {x});
}

TEST_F(ForeignTensors, MemoryThatItsTensorOwnsIsReadByReplays) {
  const auto x = leaf({6, 4});
  int freed = 0;
  const auto loss = [&] {
    auto* const numbers = new std::vector<float>(24, 0.5F);
    const auto mine = torch::from_blob(numbers->data(), {6, 4}, [&freed, numbers](void*) {
      ++freed;
      delete numbers;
    });
    const auto y = checkpoint((x * mine.clone()).tanh(), "first");
    return checkpoint((y * mine).exp() * y.tanh(), "second").square().sum();
  };
  compare(loss, {x});
  AtMarks policy(Treatment::kDrop);
  gradients(loss, {x}, &policy);
  EXPECT_EQ(report_.not_recomputable, 0);
  EXPECT_GT(report_.evicted, 0);
  const int before = freed;
  loss();
  EXPECT_EQ(freed, before + 1);
}

TEST_F(ForeignTensors, ComplexValuesCrossCutsConjugatedAndNegated) {
  const auto z = leaf({4, 6}, torch::kComplexFloat);
  const auto w = leaf({6, 6}, torch::kComplexFloat);
  compare(
      [&] {
        auto y = checkpoint(torch::conj(z * 2), "conjugated");
        y = y * torch::conj(y).tanh();
        y = torch::linear(y.view({2, 2, 6}), w.conj()).view({4, 6});
        const auto parts = checkpoint(torch::view_as_real(torch::conj_physical(y)), "parts");
        const auto minus = checkpoint(torch::imag(torch::conj(y)), "negated");  // with a neg bit
        auto loss = (minus * minus.exp()).sum() + parts.square().sum();
        checkpoint(minus, "end");
        loss = loss + torch::real(torch::matmul(y, torch::conj(y.t()))).tanh().sum();
        return loss + torch::matmul(minus, minus.t()).sin().sum();
      },
      {z, w});
}

}  // namespace
}  // namespace fleet::memory
