// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/synthetic.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/split_mix.h"

namespace fleet::applications {
namespace {

using torch::Tensor;

// What a stream of random numbers is for, so that no two share one.
enum Purpose : int64_t { kPattern, kImage, kSentences, kReversal };

Tensor tokens(int64_t rows, int64_t columns, torch::Device device) {
  return torch::zeros({rows, columns}, torch::TensorOptions(device).dtype(torch::kLong));
}

// Uniform in [-1, 1).
float colour(SplitMix64& random) {
  return static_cast<float>(random.below(1 << 16)) / (1 << 15) - 1;
}

constexpr int64_t kCells = 8;  // of a pattern, each way

void draw_image(int64_t label, int64_t seed, int64_t index, int64_t size, float* out) {
  SplitMix64 pattern({kPattern, label});
  SplitMix64 noise({kImage, seed, index});
  std::vector<float> cells(kCells * kCells);
  for (int64_t channel = 0; channel < 3; ++channel) {
    for (auto& cell : cells) cell = colour(pattern);
    for (int64_t y = 0; y < size; ++y) {
      for (int64_t x = 0; x < size; ++x) {
        const auto cell = (y * kCells / size) * kCells + x * kCells / size;
        *out++ = cells[static_cast<size_t>(cell)] + colour(noise);
      }
    }
  }
}

Batch images(int64_t classes, torch::Device device, int64_t batch_size, int64_t seed,
             int64_t size) {
  const auto target_type = torch::TensorOptions(torch::kLong);
  if (device.is_meta()) {
    return {torch::empty({batch_size, 3, size, size}, device),
            torch::empty({batch_size}, target_type.device(device))};
  }
  Batch batch{torch::empty({batch_size, 3, size, size}), torch::empty({batch_size}, target_type)};
  for (int64_t i = 0; i < batch_size; ++i) {
    SplitMix64 random({kImage, seed, i, 0});
    const auto label = static_cast<int64_t>(random.below(static_cast<uint64_t>(classes)));
    batch.target.data_ptr<int64_t>()[i] = label;
    draw_image(label, seed, i, size, batch.data.data_ptr<float>() + i * 3 * size * size);
  }
  return {batch.data.to(device), batch.target.to(device)};
}

constexpr int64_t kStart = 1, kSeparator = 2, kMask = 3, kFirstWord = 4;
constexpr int64_t kCircle = 8;       // words
constexpr int64_t kMaxCircles = 64;  // few enough for a large vocabulary to be learned too

struct Sentences {
  std::vector<int64_t> words;
  int64_t first_length = 0;  // with start and separator
  bool follows = true;
};

// [start] a a a [separator] b b b [separator]
Sentences draw_sentences(SplitMix64& random, int64_t circles, int64_t length) {
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random.below(static_cast<uint64_t>(bound)));
  };
  Sentences s;
  s.follows = circles < 2 || below(2) == 0;
  const int64_t first = below(circles);
  const int64_t second = s.follows ? first : (first + 1 + below(circles - 1)) % circles;
  const int64_t words = length - 3, half = (words + 1) / 2;
  const auto add = [&](int64_t circle, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto place = static_cast<int64_t>(s.words.size()) % kCircle;
      s.words.push_back(kFirstWord + circle * kCircle + place);
    }
    s.words.push_back(kSeparator);
  };
  s.words.push_back(kStart);
  add(first, half);
  s.first_length = static_cast<int64_t>(s.words.size());
  add(second, words - half);
  return s;
}

}  // namespace

Batch synthetic_batch(const ResnetOptions& options, int64_t batch_size, int64_t seed,
                      int64_t image_size) {
  return images(options.classes, options.device, batch_size, seed, image_size);
}

Batch synthetic_batch(const VggOptions& options, int64_t batch_size, int64_t seed,
                      int64_t image_size) {
  return images(options.classes, options.device, batch_size, seed, image_size);
}

BertBatch synthetic_batch(const BertOptions& options, int64_t batch_size, int64_t seed,
                          int64_t length) {
  const int64_t circles = std::min(kMaxCircles, (options.vocab - kFirstWord) / kCircle);
  constexpr int64_t kShortest = 8;
  if (circles < 1 || length < kShortest || options.type_vocab < 2) {
    throw UsageError(
        "synthetic",
        format("no sentence pairs of {} tokens from a vocabulary of {} and {} token types", length,
               options.vocab, options.type_vocab),
        format("take {} tokens, a vocabulary of {} and 2 types at least", kShortest,
               kFirstWord + kCircle));
  }
  const auto masked_of = [](int64_t words) { return std::max<int64_t>(1, words * 15 / 100); };
  if (options.device.is_meta()) {
    const auto row = tokens(batch_size, length, options.device);
    const auto masked = row.new_empty({batch_size * masked_of(length)});
    return {row, row, row, masked, masked, row.new_empty({batch_size})};
  }

  BertBatch batch{.token_ids = tokens(batch_size, length, torch::kCPU),
                  .token_type_ids = tokens(batch_size, length, torch::kCPU),
                  .attention_mask = tokens(batch_size, length, torch::kCPU),
                  .next_sentence_labels = tokens(1, batch_size, torch::kCPU).squeeze(0)};
  std::vector<int64_t> positions, labels;
  for (int64_t i = 0; i < batch_size; ++i) {
    SplitMix64 random({kSentences, seed, i});
    const auto below = [&](int64_t bound) {
      return static_cast<int64_t>(random.below(static_cast<uint64_t>(bound)));
    };
    const int64_t shortest = std::max(kShortest, length / 2);
    const int64_t used = shortest + below(length - shortest + 1);
    auto [words, first_length, follows] = draw_sentences(random, circles, used);
    std::vector<int64_t> places;
    for (int64_t p = 0; p < used; ++p) {
      if (words[static_cast<size_t>(p)] >= kFirstWord) places.push_back(p);
    }
    for (int64_t m = 0; m < masked_of(used); ++m) {  // a shuffle that ends early
      std::swap(places[static_cast<size_t>(m)],
                places[static_cast<size_t>(m + below(static_cast<int64_t>(places.size()) - m))]);
      auto& word = words[static_cast<size_t>(places[static_cast<size_t>(m)])];
      positions.push_back(i * length + places[static_cast<size_t>(m)]);
      labels.push_back(word);
      const auto draw = below(10);
      if (draw < 8) word = kMask;
      if (draw == 8) word = kFirstWord + below(circles * kCircle);
    }
    std::copy(words.begin(), words.end(), batch.token_ids.data_ptr<int64_t>() + i * length);
    batch.token_type_ids[i].slice(0, first_length, used).fill_(1);
    batch.attention_mask[i].slice(0, 0, used).fill_(1);
    batch.next_sentence_labels.data_ptr<int64_t>()[i] = follows ? 0 : 1;
  }
  batch.masked_positions = torch::tensor(positions, torch::kLong);
  batch.masked_labels = torch::tensor(labels, torch::kLong);
  return batch.to(options.device);
}

TransformerBatch synthetic_batch(const TransformerOptions& options, int64_t batch_size,
                                 int64_t seed, int64_t length) {
  constexpr int64_t kBegin = 1, kEnd = 2, kFirst = 3, kWords = 64;
  const int64_t words =
      std::min({kWords, options.source_vocab - kFirst, options.target_vocab - kFirst});
  if (words < 1 || length < 2) {
    throw UsageError("synthetic",
                     format("no sequences of {} tokens from vocabularies of {} and {}", length,
                            options.source_vocab, options.target_vocab),
                     format("take 2 tokens and vocabularies of {} at least", kFirst + 1));
  }
  if (options.device.is_meta()) {
    const auto row = tokens(batch_size, length, options.device);
    return {row, row, tokens(batch_size, length + 1, options.device), row};
  }
  TransformerBatch batch{
      tokens(batch_size, length, torch::kCPU), tokens(batch_size, length, torch::kCPU),
      tokens(batch_size, length + 1, torch::kCPU), tokens(batch_size, length, torch::kCPU)};
  for (int64_t i = 0; i < batch_size; ++i) {
    SplitMix64 random({kReversal, seed, i});
    const int64_t shortest = std::max<int64_t>(2, length / 2);
    const auto used =
        shortest + static_cast<int64_t>(random.below(static_cast<uint64_t>(length - shortest + 1)));
    auto* source = batch.source.data_ptr<int64_t>() + i * length;
    auto* target = batch.target.data_ptr<int64_t>() + i * (length + 1);
    target[0] = kBegin;
    for (int64_t p = 0; p + 1 < used; ++p) {
      source[p] = kFirst + static_cast<int64_t>(random.below(static_cast<uint64_t>(words)));
      target[used - 1 - p] = source[p];
    }
    source[used - 1] = target[used] = kEnd;
    batch.source_mask[i].slice(0, 0, used).fill_(1);
    batch.target_mask[i].slice(0, 0, used).fill_(1);
  }
  return batch.to(options.device);
}

}  // namespace fleet::applications
