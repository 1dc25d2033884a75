// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/transport/shared_memory/shared_sums.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "fleet/core/error.h"

namespace fleet::comm {
namespace {

constexpr int64_t kSumBlock = 1024;  // of accumulators: stays in the first-level cache

template <typename T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, at::Half> || std::is_same_v<T, at::BFloat16>, float, T>;

template <typename T, typename A>
__attribute__((optimize("O3"))) void accumulate(const T* __restrict input, bool is_maximum,
                                                A* __restrict sum, int64_t n) {
  if (!is_maximum) {
    for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<A>(input[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<A>(input[i]);
    sum[i] = x > sum[i] || x != x ? x : sum[i];
  }
}

template <typename T>
void reduce_typed(const std::vector<const void*>& inputs, ReduceOp op, T* result, int64_t n) {
  using A = Accumulator<T>;
  std::array<A, kSumBlock> sum;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t length = std::min(kSumBlock, n - begin);
    const auto* const first = static_cast<const T*>(inputs[0]) + begin;
    std::copy_n(first, length, sum.data());
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      accumulate(static_cast<const T*>(inputs[rank]) + begin, op == ReduceOp::kMax, sum.data(),
                 length);
    }
    if (op == ReduceOp::kAvg) {
      const auto ranks = static_cast<A>(inputs.size());
      for (int64_t i = 0; i < length; ++i) sum[static_cast<size_t>(i)] /= ranks;
    }
    for (int64_t i = 0; i < length; ++i) {
      result[begin + i] = static_cast<T>(sum[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace

void reduce_in_rank_order(const std::vector<const void*>& inputs, ReduceOp op,
                          const torch::Tensor& result) {
  const auto reduce = [&]<typename T>(T*) {
    reduce_typed<T>(inputs, op, static_cast<T*>(result.mutable_data_ptr()), result.numel());
  };
  switch (result.scalar_type()) {
    case torch::kFloat:
      return reduce(static_cast<float*>(nullptr));
    case torch::kDouble:
      return reduce(static_cast<double*>(nullptr));
    case torch::kBFloat16:
      return reduce(static_cast<at::BFloat16*>(nullptr));
    case torch::kHalf:
      return reduce(static_cast<at::Half*>(nullptr));
    case torch::kLong:
      return reduce(static_cast<int64_t*>(nullptr));
    default:
      FLEET_ASSERT(false, "a type that Communicator refuses");
  }
}

}  // namespace fleet::comm
