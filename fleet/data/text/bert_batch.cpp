// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/bert_batch.h"

#include <algorithm>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {

std::vector<double> BertBatch::loss_weights() const {
  std::vector<double> weights = {static_cast<double>(masked_labels.size(0))};
  if (next_sentence_labels.defined()) weights.push_back(static_cast<double>(size()));
  return weights;
}

BertBatch BertBatch::slice(int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > size()) {
    throw Error("bert", format("samples [{}, {}) of a batch of {}", begin, end, size()),
                "ask for samples that are there");
  }
  const auto rows = [&](const torch::Tensor& x) {
    return x.defined() ? x.narrow(0, begin, end - begin) : x;
  };
  BertBatch part{.token_ids = rows(token_ids),
                 .token_type_ids = rows(token_type_ids),
                 .attention_mask = rows(attention_mask),
                 .next_sentence_labels = rows(next_sentence_labels)};
  if (masked_positions.is_meta()) {
    const int64_t masked = masked_labels.size(0);
    const int64_t samples = std::max<int64_t>(1, size());
    const int64_t first = masked * begin / samples;
    const int64_t count = masked * end / samples - first;
    part.masked_positions = masked_positions.narrow(0, first, count);
    part.masked_labels = masked_labels.narrow(0, first, count);
    return part;
  }
  const int64_t length = token_ids.size(1);
  const auto is_in =
      masked_positions.ge(begin * length).logical_and(masked_positions.lt(end * length));
  part.masked_positions = masked_positions.masked_select(is_in) - begin * length;
  part.masked_labels = masked_labels.masked_select(is_in);
  return part;
}

BertBatch BertBatch::to(torch::Device device) const {
  const auto moved = [&](const torch::Tensor& x) { return x.defined() ? x.to(device) : x; };
  return {moved(token_ids),        moved(token_type_ids), moved(attention_mask),
          moved(masked_positions), moved(masked_labels),  moved(next_sentence_labels)};
}

}  // namespace fleet
