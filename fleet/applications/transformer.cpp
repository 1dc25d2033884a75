// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/transformer.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include "fleet/applications/application_entry.h"
#include "fleet/applications/name_group.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/split_mix.h"
#include "fleet/memory/checkpoint.h"
#include "fleet/ops/dropout.h"
#include "fleet/ops/layers/feed_forward.h"
#include "fleet/ops/layers/multi_head_attention.h"
#include "fleet/ops/linear_cross_entropy.h"
#include "fleet/ops/packed_linear.h"

namespace fleet::applications {
namespace {

using ops::AttentionMask;
using torch::Tensor;

ops::Linear linear(int64_t in, int64_t out, const TransformerOptions& options) {
  ops::Linear layer(in, out, ops::LinearOptions{.std = 0, .device = options.device});
  torch::nn::init::xavier_uniform_(layer->weight);
  return layer;
}

ops::LayerNorm norm(const TransformerOptions& options) {
  return ops::LayerNorm(options.width, ops::LayerNormOptions{.device = options.device});
}

ops::MultiHeadAttention attention(const TransformerOptions& options) {
  return ops::MultiHeadAttention(options.width,
                                 ops::AttentionOptions{.heads = options.heads,
                                                       .dropout = options.attention_dropout,
                                                       .path = options.attention_path},
                                 options.device);
}

ops::FeedForwardOptions feed_forward_options(const TransformerOptions& options) {
  return {.activation = ops::Activation::kRelu, .dropout = options.activation_dropout};
}

// sin(p / 10000^(2i / width)) at 2i, the cosine at 2i + 1.
Tensor sinusoids(const TransformerOptions& options) {
  const auto type = torch::TensorOptions(options.device).dtype(torch::kDouble);
  const auto rates = (torch::arange(0, options.width, 2, type) *
                      (-std::log(10000.0) / static_cast<double>(options.width)))
                         .exp();
  const auto angles = torch::arange(0, options.max_positions, type).unsqueeze(1) * rates;
  return torch::stack({angles.sin(), angles.cos()}, -1).flatten(1).to(torch::kFloat);
}

// `options` with those of a named model where they leave something open.
TransformerOptions filled(TransformerOptions options, const TransformerOptions& named) {
  for (const auto size : {&TransformerOptions::width, &TransformerOptions::feed_forward,
                          &TransformerOptions::heads}) {
    if (options.*size == 0) options.*size = named.*size;
  }
  if (!options.dropout) options.dropout = named.dropout;
  return options;
}

void check(const TransformerOptions& o) {
  std::vector<std::string> problems;
  if (o.heads < 1 || o.width % o.heads != 0) {
    problems.push_back(format("width {} does not divide into {} heads", o.width, o.heads));
  }
  if (o.width % 2 != 0) {
    problems.push_back(format("width {} is odd, and positions are pairs of numbers", o.width));
  }
  if (o.shared_embeddings && o.source_vocab != o.target_vocab) {
    problems.push_back(format("shared_embeddings with vocabularies of {} and {} tokens",
                              o.source_vocab, o.target_vocab));
  }
  if (!problems.empty())
    throw UsageError::all("transformer", "these options do not fit:", problems);
}

std::string encoder_name(size_t layer) { return format("encoder.layers.{}", layer); }
std::string decoder_name(size_t layer) { return format("decoder.layers.{}", layer); }

}  // namespace

class EncoderLayerImpl : public torch::nn::Module {
 public:
  explicit EncoderLayerImpl(const TransformerOptions& o)
      : dropout_(*o.dropout), feed_forward_(feed_forward_options(o)) {
    self_ = register_module("self_attn", attention(o));
    up_ = register_module("linear1", linear(o.width, o.feed_forward, o));
    down_ = register_module("linear2", linear(o.feed_forward, o.width, o));
    norm1_ = register_module("norm1", norm(o));
    norm2_ = register_module("norm2", norm(o));
  }

  Tensor forward(Tensor x, const AttentionMask& mask) {
    x = ops::add_norm(self_(x, x, mask), x, norm1_, dropout_);
    return ops::add_norm(ops::feed_forward(x, up_, down_, feed_forward_), x, norm2_, dropout_);
  }

 private:
  double dropout_;
  ops::FeedForwardOptions feed_forward_;
  ops::MultiHeadAttention self_{nullptr};
  ops::Linear up_{nullptr}, down_{nullptr};
  ops::LayerNorm norm1_{nullptr}, norm2_{nullptr};
};

class DecoderLayerImpl : public torch::nn::Module {
 public:
  explicit DecoderLayerImpl(const TransformerOptions& o)
      : dropout_(*o.dropout), feed_forward_(feed_forward_options(o)) {
    self_ = register_module("self_attn", attention(o));
    cross_ = register_module("multihead_attn", attention(o));
    up_ = register_module("linear1", linear(o.width, o.feed_forward, o));
    down_ = register_module("linear2", linear(o.feed_forward, o.width, o));
    norm1_ = register_module("norm1", norm(o));
    norm2_ = register_module("norm2", norm(o));
    norm3_ = register_module("norm3", norm(o));
  }

  Tensor forward(Tensor x, const Tensor& memory, const AttentionMask& mask,
                 const AttentionMask& memory_mask) {
    x = ops::add_norm(self_(x, x, mask), x, norm1_, dropout_);
    x = ops::add_norm(cross_(x, memory, memory_mask), x, norm2_, dropout_);
    return ops::add_norm(ops::feed_forward(x, up_, down_, feed_forward_), x, norm3_, dropout_);
  }

 private:
  double dropout_;
  ops::FeedForwardOptions feed_forward_;
  ops::MultiHeadAttention self_{nullptr}, cross_{nullptr};
  ops::Linear up_{nullptr}, down_{nullptr};
  ops::LayerNorm norm1_{nullptr}, norm2_{nullptr}, norm3_{nullptr};
};

TransformerImpl::TransformerImpl(const TransformerOptions& options) : options_(options.resolved()) {
  const auto& o = options_;
  check(o);
  positions_ = sinusoids(o);
  const auto embedding = [&](int64_t tokens) {
    return ops::Embedding(tokens, o.width,
                          ops::EmbeddingOptions{.std = 1 / std::sqrt(static_cast<double>(o.width)),
                                                .device = o.device});
  };
  if (o.shared_embeddings) {
    source_embedding_ = register_module("embedding", embedding(o.source_vocab));
    target_embedding_ = source_embedding_;
  } else {
    source_embedding_ = register_module("source_embedding", embedding(o.source_vocab));
    target_embedding_ = register_module("target_embedding", embedding(o.target_vocab));
  }
  auto& encoder = name_group(*this, "encoder");
  auto& encoder_layers = name_group(encoder, "layers");
  for (int64_t i = 0; i < o.encoder_layers; ++i) {
    encoder_.push_back(
        encoder_layers.register_module(std::to_string(i), std::make_shared<EncoderLayerImpl>(o)));
  }
  auto& decoder = name_group(*this, "decoder");
  auto& decoder_layers = name_group(decoder, "layers");
  for (int64_t i = 0; i < o.decoder_layers; ++i) {
    decoder_.push_back(
        decoder_layers.register_module(std::to_string(i), std::make_shared<DecoderLayerImpl>(o)));
  }
  if (o.final_norm) {
    encoder_norm_ = encoder.register_module("norm", norm(o));
    decoder_norm_ = decoder.register_module("norm", norm(o));
  }
  if (!o.shared_embeddings) {
    ops::Linear scores(o.width, o.target_vocab,
                       ops::LinearOptions{.bias = false, .std = 0, .device = o.device});
    torch::nn::init::xavier_uniform_(scores->weight);
    generator_ = register_module("generator", scores);
  }
}

Tensor TransformerImpl::embed(ops::Embedding& table, const Tensor& tokens) {
  const int64_t length = tokens.size(1);
  if (length > options_.max_positions) {
    throw Error("transformer",
                format("a sequence of {} tokens, but there are {} positions", length,
                       options_.max_positions),
                "cut the sequences, or build the model with more max_positions");
  }
  const auto x = table(tokens) * std::sqrt(static_cast<double>(options_.width));
  return ops::dropout(x + positions_.narrow(0, 0, length).to(x.options()), *options_.dropout,
                      is_training());
}

Tensor TransformerImpl::encode(const Tensor& source, const AttentionMask& mask) {
  auto x = embed(source_embedding_, source);
  for (size_t i = 0; i < encoder_.size(); ++i) {
    x = checkpoint(encoder_[i]->forward(x, mask), encoder_name(i));
  }
  return encoder_norm_ ? encoder_norm_(x) : x;
}

Tensor TransformerImpl::decode_features(const Tensor& target, const Tensor& memory,
                                        const AttentionMask& memory_mask) {
  // Padding stands behind what is looked at, so the causal mask hides it too.
  const auto mask = AttentionMask::causal_of(target.size(1), target.device());
  auto x = embed(target_embedding_, target);
  const auto read = ops::cast_for_products(memory);
  for (size_t i = 0; i < decoder_.size(); ++i) {
    x = checkpoint(decoder_[i]->forward(x, read, mask, memory_mask), decoder_name(i));
  }
  return decoder_norm_ ? decoder_norm_(x) : x;
}

Tensor TransformerImpl::decode(const Tensor& target, const Tensor& memory,
                               const AttentionMask& memory_mask) {
  return ops::packed_linear(decode_features(target, memory, memory_mask), score_weight());
}

const Tensor& TransformerImpl::score_weight() const {
  return generator_ ? generator_->weight : target_embedding_->weight;
}

Tensor TransformerImpl::features(const TransformerBatch& batch) {
  const auto mask = AttentionMask::padding(batch.source_mask);
  const auto memory = encode(batch.source, mask);
  return decode_features(batch.target.narrow(1, 0, batch.target.size(1) - 1), memory, mask);
}

Tensor TransformerImpl::forward(const TransformerBatch& batch) {
  return ops::packed_linear(features(batch), score_weight());
}

namespace {

// What is to be predicted, with -100, which LibTorch's loss passes over, for padding.
Tensor labels_of(const TransformerBatch& batch) {
  const auto labels = batch.target.narrow(1, 1, batch.target.size(1) - 1);
  if (!batch.target_mask.defined()) return labels.flatten();
  return labels.masked_fill(batch.target_mask.eq(0), -100).flatten();
}

// One number per batch; a tensor, since counting real tokens must not wait for a device.
Tensor mean_over_tokens(const Tensor& sum, const TransformerBatch& batch) {
  if (batch.target_mask.defined()) return sum / batch.target_mask.ne(0).sum().clamp_min(1);
  return sum / static_cast<double>(std::max<int64_t>(1, batch.size() * (batch.target.size(1) - 1)));
}

Tensor loss_sum(const Tensor& scores, const TransformerBatch& batch, double label_smoothing) {
  return torch::cross_entropy_loss(scores.flatten(0, 1), labels_of(batch), {}, at::Reduction::Sum,
                                   -100, label_smoothing);
}

Tensor token_loss(const Tensor& scores, const TransformerBatch& batch, double label_smoothing) {
  return mean_over_tokens(loss_sum(scores, batch, label_smoothing), batch);
}

}  // namespace

WeightedLoss TransformerImpl::loss(const TransformerBatch& batch) {
  // Without the scores of the whole vocabulary.
  return {.sum = ops::linear_cross_entropy(features(batch), score_weight(), {}, labels_of(batch),
                                           {.label_smoothing = options_.label_smoothing}),
          .weight = static_cast<double>(batch.target_tokens())};
}

TransformerMetrics TransformerImpl::metrics(const TransformerBatch& batch) {
  const auto scores = forward(batch);
  const auto seen = scores.detach();
  const auto right = seen.flatten(0, 1).argmax(-1).eq(labels_of(batch)).sum().to(torch::kFloat);
  return {.loss = token_loss(scores, batch, options_.label_smoothing),
          .negative_log_likelihood = token_loss(seen, batch, 0),
          .accuracy = mean_over_tokens(right, batch)};
}

std::vector<std::string> TransformerImpl::checkpoints() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < encoder_.size(); ++i) names.push_back(encoder_name(i));
  for (size_t i = 0; i < decoder_.size(); ++i) names.push_back(decoder_name(i));
  return names;
}

TransformerOptions TransformerOptions::resolved() const {
  return filled(*this, {.width = 512, .feed_forward = 2048, .heads = 8, .dropout = 0.1});
}

TransformerOptions transformer_big_options(TransformerOptions options) {
  return filled(options, {.width = 1024, .feed_forward = 4096, .heads = 16, .dropout = 0.3});
}

Transformer TransformerBase(const TransformerOptions& options) { return Transformer(options); }
Transformer TransformerBig(const TransformerOptions& options) {
  return Transformer(transformer_big_options(options));
}

const FieldList& fields_of(const TransformerOptions*) {
  using T = TransformerOptions;
  static const FieldList list{
      .area = "transformer",
      .fields = {
          field<&T::source_vocab>("source_vocab", "size of the source vocabulary").at_least(1),
          field<&T::target_vocab>("target_vocab", "size of the target vocabulary").at_least(1),
          field<&T::width>("width", "width of a layer").at_least(1),
          field<&T::feed_forward>("feed_forward", "width of the feed-forward").at_least(1),
          field<&T::heads>("heads", "number of attention heads").at_least(1),
          field<&T::encoder_layers>("encoder_layers", "number of encoder layers").at_least(1),
          field<&T::decoder_layers>("decoder_layers", "number of decoder layers").at_least(1),
          field<&T::max_positions>("max_positions", "maximum sequence length").at_least(1),
          field<&T::label_smoothing>("label_smoothing", "label smoothing factor")
              .at_least(0)
              .below(1),
      }};
  return list;
}

TransformerBatch synthetic_batch(const TransformerOptions& options, int64_t batch_size,
                                 int64_t seed, int64_t length) {
  constexpr int64_t kReversalStream = 3;  // of random numbers; that of sentences is 2
  constexpr int64_t kBegin = 1, kEnd = 2, kFirst = 3, kWords = 64;
  const int64_t words =
      std::min({kWords, options.source_vocab - kFirst, options.target_vocab - kFirst});
  if (words < 1 || length < 2) {
    throw UsageError("synthetic",
                     format("no sequences of {} tokens from vocabularies of {} and {}", length,
                            options.source_vocab, options.target_vocab),
                     format("take 2 tokens and vocabularies of {} at least", kFirst + 1));
  }
  const auto tokens = [](int64_t rows, int64_t columns, torch::Device device) {
    return torch::zeros({rows, columns}, torch::TensorOptions(device).dtype(torch::kLong));
  };
  if (options.device.is_meta()) {
    const auto row = tokens(batch_size, length, options.device);
    return {row, row, tokens(batch_size, length + 1, options.device), row};
  }
  TransformerBatch batch{
      tokens(batch_size, length, torch::kCPU), tokens(batch_size, length, torch::kCPU),
      tokens(batch_size, length + 1, torch::kCPU), tokens(batch_size, length, torch::kCPU)};
  for (int64_t i = 0; i < batch_size; ++i) {
    SplitMix64 random({kReversalStream, seed, i});
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

namespace {

// Source and target have as many tokens.
AnyModel any_transformer(TransformerOptions options, const ModelRequest& request,
                         int64_t length = 32) {
  if (request.outputs > 0) options.source_vocab = options.target_vocab = request.outputs;
  if (!request.dropout) options.dropout = 0;
  options.max_positions = std::max(options.max_positions, request.length + 1);
  options.device = request.device;
  return any_model(Transformer(options), request, length);
}

}  // namespace

ApplicationEntry transformer_application() {
  return {.name = "transformer",
          .samples = SampleKind::kTokens,
          .presets = {{"transformer-base",
                       [](const ModelRequest& request) { return any_transformer({}, request); }},
                      {"transformer-big",
                       [](const ModelRequest& request) {
                         return any_transformer(transformer_big_options(), request);
                       }}},
          .trial = {.make =
                        [](const ModelRequest& request) {
                          return any_transformer({.source_vocab = 16,
                                                  .target_vocab = 16,
                                                  .width = 64,
                                                  .feed_forward = 128,
                                                  .heads = 4,
                                                  .encoder_layers = 1,
                                                  .decoder_layers = 1,
                                                  .label_smoothing = 0},
                                                 request, 8);
                        },
                    .samples = 64,
                    .updates = 100,
                    .lr = 5e-3,
                    .first_loss = 2.5,
                    .last_loss = 1,
                    .program = "transformer",
                    .flags = {"--layers=1", "--hidden=64", "--seq=8"}}};
}

}  // namespace fleet::applications
