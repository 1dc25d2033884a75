// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/bert.h"

#include <algorithm>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include "fleet/applications/name_group.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/checkpoint.h"
#include "fleet/ops/feed_forward.h"

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

Tensor share(const Tensor& scores, const Tensor& labels) {
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
    const auto context = ops::attention(query_(x), key_(x), value_(x), mask,
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
  return torch::dropout(embedding_norm_(x), options_.hidden_dropout, is_training());
}

Tensor BertImpl::encode(const BertBatch& batch) {
  const auto mask = ops::AttentionMask::padding(batch.attention_mask);
  auto x = embed(batch);
  for (size_t i = 0; i < layers_.size(); ++i) {
    x = checkpoint(layers_[i]->forward(x, mask), name_of(i));
  }
  return x;
}

BertScores BertImpl::forward(const BertBatch& batch) {
  const auto x = encode(batch);
  const auto masked = x.flatten(0, 1).index_select(0, batch.masked_positions);
  const auto pooled = pooler_(x.select(1, 0)).tanh();
  return {
      .masked_tokens = torch::linear(transform_norm_(torch::gelu(transform_(masked))),
                                     words_->weight, decoder_bias_),
      .next_sentence = seq_relationship_(pooled),
  };
}

LossTerms BertImpl::losses(const BertBatch& batch, const BertScores& scores) {
  const auto weights = batch.loss_weights();
  const auto sum = [](const Tensor& of, const Tensor& labels) {
    return torch::cross_entropy_loss(of, labels, {}, at::Reduction::Sum);
  };
  LossTerms result{.terms = {{sum(scores.masked_tokens, batch.masked_labels), weights[0]}}};
  if (batch.next_sentence_labels.defined()) {
    result.terms.push_back({sum(scores.next_sentence, batch.next_sentence_labels), weights[1]});
  }
  return result;
}

LossTerms BertImpl::loss(const BertBatch& batch) { return losses(batch, forward(batch)); }

BertMetrics BertImpl::metrics(const BertBatch& batch) {
  const auto scores = forward(batch);
  const auto terms = losses(batch, scores);
  BertMetrics result;
  result.loss = terms.mean();
  result.masked_lm_loss = terms.terms[0].mean();
  result.next_sentence_loss = terms.terms.size() > 1
                                  ? terms.terms[1].mean()
                                  : torch::zeros({}, result.masked_lm_loss.options());
  result.masked_lm_accuracy = share(scores.masked_tokens, batch.masked_labels);
  result.next_sentence_accuracy = batch.next_sentence_labels.defined()
                                      ? share(scores.next_sentence, batch.next_sentence_labels)
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
          field<&B::vocab>("vocab", "tokens that there are").at_least(1),
          field<&B::hidden>("hidden", "width of a layer").at_least(1),
          field<&B::layers>("layers", "of the encoder").at_least(1),
          field<&B::heads>("heads", "of attention").at_least(1),
          field<&B::intermediate>("intermediate", "width of the feed-forward").at_least(1),
          field<&B::max_positions>("max_positions", "longest sequence").at_least(1),
          field<&B::hidden_dropout>("hidden_dropout", "of layers").at_least(0).below(1),
          field<&B::attention_dropout>("attention_dropout", "of attention").at_least(0).below(1),
      }};
  return list;
}

}  // namespace fleet::applications
