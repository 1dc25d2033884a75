// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/data/synthetic_data.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>

#include "fleet/applications/bert.h"
#include "fleet/applications/data/synthetic_image_batch.h"
#include "fleet/applications/transformer.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::applications {
namespace {

// Sample n is the only one of the batch with seed n.
class SyntheticDataset : public Dataset {
 public:
  using Draw = std::function<Batch(int64_t seed)>;

  SyntheticDataset(const SampleRange& range, Draw draw) : range_(range), draw_(std::move(draw)) {
    if (range.count < 1) {
      throw UsageError("synthetic", format("{} samples", range.count), "ask for one at least");
    }
  }

  int64_t size() const override { return range_.count; }

  Batch get(std::span<const int64_t> indices, int64_t) const override {
    const auto one = draw_(range_.first);
    const auto count = static_cast<int64_t>(indices.size());
    Batch batch{rows_like(one.data, count), rows_like(one.target, count)};
    for (int64_t i = 0; i < count; ++i) {
      const auto sample = draw_(range_.first + indices[static_cast<size_t>(i)]);
      copy_row(sample.data, batch.data, i);
      copy_row(sample.target, batch.target, i);
    }
    return batch;
  }

 private:
  static torch::Tensor rows_like(const torch::Tensor& one, int64_t count) {
    auto sizes = one.sizes().vec();
    sizes[0] = count;
    return torch::empty(sizes, one.options());
  }

  static void copy_row(const torch::Tensor& from, const torch::Tensor& to, int64_t row) {
    std::memcpy(static_cast<char*>(to.data_ptr()) + row * static_cast<int64_t>(from.nbytes()),
                from.const_data_ptr(), from.nbytes());
  }

  SampleRange range_;
  Draw draw_;
};

// A sample without what was masked: the words that a batch of one shows, with its labels put back.
void add_sample(const BertBatch& batch, TextSamples& samples) {
  auto shown = batch.token_ids[0].clone();
  shown.index_copy_(0, batch.masked_positions, batch.masked_labels);
  const auto length = batch.attention_mask.sum().item<int64_t>();
  const auto second = batch.token_type_ids.sum().item<int64_t>();
  const auto tokens = shown.narrow(0, 0, length).to(torch::kInt32);
  samples.add({.tokens = {tokens.const_data_ptr<int32_t>(), static_cast<size_t>(length)},
               .first_length = length - second,
               .follows = batch.next_sentence_labels.item<int64_t>() == 0});
}

Vocabulary numbered_words(int64_t count) {
  std::vector<std::string> tokens = {"[PAD]", "[CLS]", "[SEP]", "[MASK]"};
  while (std::ssize(tokens) < count) tokens.push_back(format("w{}", tokens.size()));
  return Vocabulary(std::move(tokens));
}

}  // namespace

std::shared_ptr<const Dataset> synthetic_images(int64_t classes, int64_t image_size,
                                                const SampleRange& range) {
  return std::make_shared<SyntheticDataset>(range, [=](int64_t seed) {
    return synthetic_image_batch({.classes = classes, .image_size = image_size}, 1, seed);
  });
}

std::shared_ptr<const Dataset> synthetic_translation(int64_t vocab, int64_t length,
                                                     const SampleRange& range) {
  return std::make_shared<SyntheticDataset>(range, [=](int64_t seed) {
    const auto one = synthetic_batch(
        TransformerOptions{.source_vocab = vocab, .target_vocab = vocab}, 1, seed, length);
    return Batch{one.source, one.target};
  });
}

MaskedText synthetic_text(int64_t vocab, const SampleRange& range,
                          const MaskedTextOptions& options) {
  TextSamples samples;
  for (int64_t i = 0; i < range.count; ++i) {
    add_sample(
        synthetic_batch(BertOptions{.vocab = vocab}, 1, range.first + i, options.max_seq_len),
        samples);
  }
  return {std::move(samples), numbered_words(vocab), options};
}

}  // namespace fleet::applications
