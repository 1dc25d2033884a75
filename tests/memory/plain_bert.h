// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "fleet/applications/bert.h"
#include "fleet/memory/checkpoint.h"

namespace fleet {

/// A layer of BERT in LibTorch's ops only: scores, softmax, dropouts and norms of their own, as
/// most programs have them. applications::Bert is made of fused ops.
class PlainBertLayerImpl : public torch::nn::Module {
 public:
  explicit PlainBertLayerImpl(const applications::BertOptions& o) : options_(o) {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, torch::nn::Linear(in, out));
    };
    const auto norm = [&](const char* name) {
      return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})));
    };
    query_ = linear("query", o.hidden, o.hidden);
    key_ = linear("key", o.hidden, o.hidden);
    value_ = linear("value", o.hidden, o.hidden);
    out_ = linear("out", o.hidden, o.hidden);
    up_ = linear("up", o.hidden, o.intermediate);
    down_ = linear("down", o.intermediate, o.hidden);
    norm1_ = norm("norm1");
    norm2_ = norm("norm2");
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& bias) {
    const auto heads = [&](const torch::Tensor& t) {
      return t.unflatten(-1, {options_.heads, -1}).transpose(1, 2);
    };
    const auto q = heads(query_(x)), k = heads(key_(x)), v = heads(value_(x));
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
    auto weights = torch::matmul(q * scale, k.transpose(-2, -1));
    weights.add_(bias);
    weights = torch::softmax(weights, -1);
    weights = torch::dropout(weights, options_.attention_dropout, /*train=*/true);
    const auto context = torch::matmul(weights, v).transpose(1, 2).flatten(2);
    const auto y = norm1_(x + dropped(out_(context)));
    return norm2_(y + dropped(down_(torch::gelu(up_(y)))));
  }

 private:
  torch::Tensor dropped(const torch::Tensor& x) const {
    return torch::dropout(x, options_.hidden_dropout, /*train=*/true);
  }

  applications::BertOptions options_;
  torch::nn::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, out_{nullptr}, up_{nullptr},
      down_{nullptr};
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
};

class PlainBertImpl : public torch::nn::Module {
 public:
  explicit PlainBertImpl(const applications::BertOptions& o) : options_(o) {
    words_ = register_module("words", torch::nn::Embedding(o.vocab, o.hidden));
    positions_ = register_module("positions", torch::nn::Embedding(o.max_positions, o.hidden));
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})));
    transform_ = register_module("transform", torch::nn::Linear(o.hidden, o.hidden));
    transform_norm_ = register_module(
        "transform_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})));
    for (int64_t i = 0; i < o.layers; ++i) {
      layers_.push_back(
          register_module(name_of(i), std::make_shared<PlainBertLayerImpl>(options_)));
    }
  }

  /// Of the masked tokens.
  torch::Tensor loss(const BertBatch& batch) {
    const auto allowed = batch.attention_mask.to(torch::kBool);
    const auto bias = torch::zeros(allowed.sizes()).masked_fill_(allowed.eq(0), -3e38);
    const auto places = positions_->weight.narrow(0, 0, batch.token_ids.size(1));
    auto x = torch::dropout(norm_(words_(batch.token_ids) + places), options_.hidden_dropout,
                            /*train=*/true);
    for (size_t i = 0; i < layers_.size(); ++i) {
      x = checkpoint(layers_[i]->forward(x, bias.unsqueeze(1).unsqueeze(1)),
                     name_of(static_cast<int64_t>(i)));
    }
    const auto masked = x.flatten(0, 1).index_select(0, batch.masked_positions);
    const auto scores =
        torch::linear(transform_norm_(torch::gelu(transform_(masked))), words_->weight);
    return torch::cross_entropy_loss(scores, batch.masked_labels);
  }

  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (int64_t i = 0; i < options_.layers; ++i) names.push_back(name_of(i));
    return names;
  }

 private:
  static std::string name_of(int64_t layer) { return "layer" + std::to_string(layer); }

  applications::BertOptions options_;
  torch::nn::Embedding words_{nullptr}, positions_{nullptr};
  torch::nn::LayerNorm norm_{nullptr}, transform_norm_{nullptr};
  torch::nn::Linear transform_{nullptr};
  std::vector<std::shared_ptr<PlainBertLayerImpl>> layers_;
};

class PlainBert : public torch::nn::ModuleHolder<PlainBertImpl> {
 public:
  using ModuleHolder::ModuleHolder;
  torch::Tensor loss(const BertBatch& batch) { return get()->loss(batch); }
};

}  // namespace fleet
