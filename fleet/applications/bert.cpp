// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/bert.h"

#include <algorithm>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>

#include "fleet/applications/application_entry.h"
#include "fleet/applications/name_group.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/split_mix.h"
#include "fleet/memory/checkpoint.h"
#include "fleet/ops/bias_gelu.h"
#include "fleet/ops/dropout.h"
#include "fleet/ops/layers/feed_forward.h"
#include "fleet/ops/linear_cross_entropy.h"
#include "fleet/ops/packed_linear.h"

namespace fleet::applications {
namespace {

using torch::Tensor;

ops::Linear linear(int64_t in, int64_t out, const BertOptions& options) {
  return ops::Linear(in, out,
                     ops::LinearOptions{.std = options.init_std, .device = options.device});
}

ops::LayerNorm norm(const BertOptions& options) {
  return ops::LayerNorm(options.hidden, ops::LayerNormOptions{.eps = options.layer_norm_eps,
                                                              .device = options.device});
}

std::string name_of(size_t layer) { return format("encoder.layer.{}", layer); }

// `options` with the sizes of a named model instead of 0.
BertOptions filled(BertOptions options, const BertOptions& named) {
  for (const auto size : {&BertOptions::hidden, &BertOptions::layers, &BertOptions::heads,
                          &BertOptions::intermediate}) {
    if (options.*size == 0) options.*size = named.*size;
  }
  return options;
}

void check(const BertOptions& options) {
  if (options.heads < 1 || options.hidden % options.heads != 0) {
    throw UsageError(
        "bert",
        format("{} hidden units do not divide into {} heads", options.hidden, options.heads),
        "make hidden a multiple of heads");
  }
}

Tensor sum_of_losses(const Tensor& scores, const Tensor& labels) {
  return torch::cross_entropy_loss(scores, labels, {}, at::Reduction::Sum);
}

Tensor accuracy(const Tensor& scores, const Tensor& labels) {
  const auto right = scores.detach().argmax(-1).eq(labels).to(torch::kFloat);
  return right.sum() / static_cast<double>(std::max<int64_t>(1, labels.size(0)));
}

}  // namespace

class BertLayerImpl : public torch::nn::Module {
 public:
  explicit BertLayerImpl(const BertOptions& o) : options_(o) {
    auto& attention = name_group(*this, "attention");
    auto& self = name_group(attention, "self");
    query_ = self.register_module("query", linear(o.hidden, o.hidden, o));
    key_ = self.register_module("key", linear(o.hidden, o.hidden, o));
    value_ = self.register_module("value", linear(o.hidden, o.hidden, o));
    auto& self_output = name_group(attention, "output");
    context_dense_ = self_output.register_module("dense", linear(o.hidden, o.hidden, o));
    context_norm_ = self_output.register_module("LayerNorm", norm(o));
    up_ = name_group(*this, "intermediate")
              .register_module("dense", linear(o.hidden, o.intermediate, o));
    auto& output = name_group(*this, "output");
    down_ = output.register_module("dense", linear(o.intermediate, o.hidden, o));
    output_norm_ = output.register_module("LayerNorm", norm(o));
  }

  Tensor forward(const Tensor& x, const ops::AttentionMask& mask) {
    const auto read = ops::cast_for_products(x);
    const auto context = ops::attention(query_(read), key_(read), value_(read), mask,
                                        {.heads = options_.heads,
                                         .dropout = options_.attention_dropout,
                                         .path = options_.attention_path},
                                        is_training());
    const auto y =
        ops::add_norm(context_dense_(context), x, context_norm_, options_.hidden_dropout);
    return ops::add_norm(ops::feed_forward(y, up_, down_), y, output_norm_,
                         options_.hidden_dropout);
  }

 private:
  BertOptions options_;
  ops::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, context_dense_{nullptr};
  ops::LayerNorm context_norm_{nullptr};
  ops::Linear up_{nullptr}, down_{nullptr};
  ops::LayerNorm output_norm_{nullptr};
};

BertImpl::BertImpl(const BertOptions& options) : options_(options.resolved()) {
  const auto& o = options_;
  check(o);
  const auto embedding = [&](int64_t tokens, int64_t padding) {
    return ops::Embedding(
        tokens, o.hidden,
        ops::EmbeddingOptions{.std = o.init_std, .padding = padding, .device = o.device});
  };
  auto& bert = name_group(*this, "bert");
  auto& embeddings = name_group(bert, "embeddings");
  words_ = embeddings.register_module("word_embeddings", embedding(o.vocab, o.pad_token));
  positions_ = embeddings.register_module("position_embeddings", embedding(o.max_positions, -1));
  types_ = embeddings.register_module("token_type_embeddings", embedding(o.type_vocab, -1));
  embedding_norm_ = embeddings.register_module("LayerNorm", norm(o));
  auto& layers = name_group(name_group(bert, "encoder"), "layer");
  for (int64_t i = 0; i < o.layers; ++i) {
    layers_.push_back(
        layers.register_module(std::to_string(i), std::make_shared<BertLayerImpl>(o)));
  }
  pooler_ = name_group(bert, "pooler").register_module("dense", linear(o.hidden, o.hidden, o));

  auto& cls = name_group(*this, "cls");
  auto& predictions = name_group(cls, "predictions");
  decoder_bias_ = predictions.register_parameter("bias", torch::zeros({o.vocab}, o.device));
  auto& transform = name_group(predictions, "transform");
  transform_ = transform.register_module("dense", linear(o.hidden, o.hidden, o));
  transform_norm_ = transform.register_module("LayerNorm", norm(o));
  seq_relationship_ = cls.register_module("seq_relationship", linear(o.hidden, 2, o));
}

Tensor BertImpl::embed(const BertBatch& batch) {
  const int64_t length = batch.token_ids.size(1);
  if (length > options_.max_positions) {
    throw Error("bert",
                format("a sequence of {} tokens, but there are {} positions", length,
                       options_.max_positions),
                "cut the sequences, or build the model with more max_positions");
  }
  auto x = words_(batch.token_ids);
  x = x +
      (batch.token_type_ids.defined() ? types_(batch.token_type_ids) : types_->weight.select(0, 0));
  x = x + positions_->weight.narrow(0, 0, length);
  return ops::dropout(embedding_norm_(x), options_.hidden_dropout, is_training());
}

Tensor BertImpl::encode(const BertBatch& batch) {
  const auto mask = ops::AttentionMask::padding(batch.attention_mask);
  auto x = embed(batch);
  for (size_t i = 0; i < layers_.size(); ++i) {
    x = checkpoint(layers_[i]->forward(x, mask), name_of(i));
  }
  return x;
}

Tensor BertImpl::masked_features(const Tensor& encoded, const BertBatch& batch) {
  const auto masked = encoded.flatten(0, 1).index_select(0, batch.masked_positions);
  const auto wide = ops::packed_linear(masked, transform_->weight);
  return transform_norm_(ops::bias_gelu(wide, transform_->bias));
}

Tensor BertImpl::next_sentence_scores(const Tensor& encoded) {
  return seq_relationship_(pooler_(encoded.select(1, 0)).tanh());
}

BertScores BertImpl::forward(const BertBatch& batch) {
  const auto x = encode(batch);
  return {
      .masked_tokens = ops::packed_linear(masked_features(x, batch), words_->weight, decoder_bias_),
      .next_sentence = next_sentence_scores(x)};
}

LossTerms BertImpl::losses(const BertBatch& batch, const Tensor& masked_lm_sum,
                           const Tensor& next_sentence) {
  const auto weights = batch.loss_weights();
  LossTerms result{.terms = {{masked_lm_sum, weights[0]}}};
  if (batch.next_sentence_labels.defined()) {
    result.terms.push_back({sum_of_losses(next_sentence, batch.next_sentence_labels), weights[1]});
  }
  return result;
}

// Without the scores of the whole vocabulary.
LossTerms BertImpl::loss(const BertBatch& batch) {
  const auto x = encode(batch);
  return losses(batch,
                ops::linear_cross_entropy(masked_features(x, batch), words_->weight, decoder_bias_,
                                          batch.masked_labels),
                next_sentence_scores(x));
}

BertMetrics BertImpl::metrics(const BertBatch& batch) {
  const auto scores = forward(batch);
  const auto terms =
      losses(batch, sum_of_losses(scores.masked_tokens, batch.masked_labels), scores.next_sentence);
  BertMetrics result;
  result.loss = terms.mean();
  result.masked_lm_loss = terms.terms[0].mean();
  result.next_sentence_loss = terms.terms.size() > 1
                                  ? terms.terms[1].mean()
                                  : torch::zeros({}, result.masked_lm_loss.options());
  result.masked_lm_accuracy = accuracy(scores.masked_tokens, batch.masked_labels);
  result.next_sentence_accuracy = batch.next_sentence_labels.defined()
                                      ? accuracy(scores.next_sentence, batch.next_sentence_labels)
                                      : torch::zeros({}, scores.next_sentence.options());
  return result;
}

std::vector<std::string> BertImpl::checkpoints() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < layers_.size(); ++i) names.push_back(name_of(i));
  return names;
}

MaskedText Bert::load_digital_dataset_from_file(const MaskedTextOptions& data) const {
  auto text = fleet::load_digital_dataset_from_file(data);
  std::vector<std::string> problems;
  if (text.vocabulary().size() > options().vocab) {
    problems.push_back(format("{} has {} tokens, the model {}", data.vocab_path.string(),
                              text.vocabulary().size(), options().vocab));
  }
  if (data.max_seq_len > options().max_positions) {
    problems.push_back(format("max_seq_len is {}, the model has {} positions", data.max_seq_len,
                              options().max_positions));
  }
  if (!problems.empty()) {
    throw UsageError::all("bert", "the model has no room for these data", problems,
                          "build the model with .vocab and .max_positions of the data");
  }
  return text;
}

BertOptions BertOptions::resolved() const {
  return filled(*this, {.hidden = 768, .layers = 12, .heads = 12, .intermediate = 3072});
}

BertOptions bert_large_options(BertOptions options) {
  return filled(options, {.hidden = 1024, .layers = 24, .heads = 16, .intermediate = 4096});
}

Bert BertBase(const BertOptions& options) { return Bert(options); }
Bert BertLarge(const BertOptions& options) { return Bert(bert_large_options(options)); }

const FieldList& fields_of(const BertOptions*) {
  using B = BertOptions;
  static const FieldList list{
      .area = "bert",
      .fields = {
          field<&B::vocab>("vocab", "size of the vocabulary").at_least(1),
          field<&B::hidden>("hidden", "width of a layer").at_least(1),
          field<&B::layers>("layers", "number of encoder layers").at_least(1),
          field<&B::heads>("heads", "number of attention heads").at_least(1),
          field<&B::intermediate>("intermediate", "width of the feed-forward").at_least(1),
          field<&B::max_positions>("max_positions", "maximum sequence length").at_least(1),
          field<&B::hidden_dropout>("hidden_dropout", "dropout of the layers' outputs")
              .at_least(0)
              .below(1),
          field<&B::attention_dropout>("attention_dropout", "dropout of the attention weights")
              .at_least(0)
              .below(1),
      }};
  return list;
}

namespace {

constexpr int64_t kSentenceStream = 2;  // of random numbers; those of images are 0 and 1

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

AnyModel any_bert(BertOptions options, const ModelRequest& request, int64_t length = 128) {
  if (request.outputs > 0) options.vocab = request.outputs;
  if (!request.dropout) options.hidden_dropout = options.attention_dropout = 0;
  options.max_positions = std::max(options.max_positions, request.length);
  options.device = request.device;
  return any_model(Bert(options), request, length);
}

}  // namespace

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
  const auto tokens = [](int64_t rows, int64_t columns, torch::Device device) {
    return torch::zeros({rows, columns}, torch::TensorOptions(device).dtype(torch::kLong));
  };
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
    SplitMix64 random({kSentenceStream, seed, i});
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

ApplicationEntry bert_application() {
  return {
      .name = "bert",
      .samples = SampleKind::kTokens,
      .presets = {{"bert-base", [](const ModelRequest& request) { return any_bert({}, request); }},
                  {"bert-large",
                   [](const ModelRequest& request) {
                     return any_bert(bert_large_options(), request);
                   }}},
      .trial = {.make =
                    [](const ModelRequest& request) {
                      return any_bert({.vocab = 36,
                                       .hidden = 64,
                                       .layers = 2,
                                       .heads = 4,
                                       .intermediate = 128,
                                       .max_positions = 32},
                                      request, 32);
                    },
                .samples = 64,
                .updates = 30,
                .lr = 5e-3,
                .first_loss = 4,
                .last_loss = 2,
                .program = "bert",
                .flags = {"--layers=1", "--hidden=64", "--heads=2", "--seq=32"}}};
}

}  // namespace fleet::applications
