// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/data/transformer_batch.h"

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {

TransformerBatch TransformerBatch::padded(const torch::Tensor& source, const torch::Tensor& target,
                                          int64_t pad) {
  return {source, source.ne(pad), target, target.narrow(1, 1, target.size(1) - 1).ne(pad)};
}

TransformerBatch TransformerBatch::slice(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > size()) {
    throw Error("transformer", format("samples [{}, {}) of a batch of {}", begin, end, size()),
                "ask for samples that are there");
  }
  const auto rows = [&](const torch::Tensor& x) {
    return x.defined() ? x.narrow(0, begin, end - begin) : x;
  };
  return {rows(source), rows(source_mask), rows(target), rows(target_mask)};
}

int64_t TransformerBatch::target_tokens() const {
  const bool can_count = target_mask.defined() && !target_mask.is_meta();
  return can_count ? target_mask.ne(0).sum().item<int64_t>() : size() * (target.size(1) - 1);
}

TransformerBatch TransformerBatch::to(torch::Device device) const {
  const auto moved = [&](const torch::Tensor& x) { return x.defined() ? x.to(device) : x; };
  return {moved(source), moved(source_mask), moved(target), moved(target_mask)};
}

}  // namespace fleet
