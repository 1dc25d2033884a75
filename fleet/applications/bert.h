// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fleet/applications/application.h"
#include "fleet/data/text/bert_batch.h"
#include "fleet/data/text/masked_text.h"
#include "fleet/ops/layers/attention.h"
#include "fleet/ops/layers/embedding.h"
#include "fleet/ops/layers/layer_norm.h"
#include "fleet/ops/layers/linear.h"

namespace fleet::applications {

struct ApplicationEntry;

/// A size that is 0 is that of the named model, or else of BERT base.
struct BertOptions {
  int64_t vocab = 30522;
  int64_t hidden = 0;        // 768; large: 1024
  int64_t layers = 0;        // 12; large: 24
  int64_t heads = 0;         // 12; large: 16
  int64_t intermediate = 0;  // 3072; large: 4096
  int64_t max_positions = 512;
  int64_t type_vocab = 2;
  int64_t pad_token = 0;  // its embedding starts at zero
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double layer_norm_eps = 1e-12;
  double init_std = 0.02;
  ops::AttentionPath attention_path = ops::AttentionPath::kAuto;
  torch::Device device = torch::kCPU;

  /// With the sizes of BERT base instead of 0.
  BertOptions resolved() const;
};
const FieldList& fields_of(const BertOptions*);

/// The outputs of both heads.
struct BertScores {
  torch::Tensor masked_tokens;  // M x vocab: only masked places are scored
  torch::Tensor next_sentence;  // N x 2
};

/// Metrics of one batch, from one forward; each a tensor of one number.
struct BertMetrics {
  torch::Tensor loss;                    // the sum of the next two; differentiable
  torch::Tensor masked_lm_loss;          // mean over the masked tokens
  torch::Tensor next_sentence_loss;      // mean over the samples; 0 without labels
  torch::Tensor masked_lm_accuracy;      // fraction of masked tokens predicted correctly
  torch::Tensor next_sentence_accuracy;  // 0 without labels
};

class BertLayerImpl;

/// Devlin et al., arXiv 1810.04805, with both heads of its pretraining. Parameters have the names,
/// shapes and initial values of transformers' BertForPreTraining
/// ("bert.encoder.layer.0.attention.self.query.weight"); the decoder of the masked-token head is
/// the table of word embeddings and has no name of its own.
///
///   auto model = BertLarge();
///   auto loss = model.loss(batch);
///   auto [all, masked_lm, next_sentence, ...] = model.metrics(batch);
class BertImpl : public torch::nn::Module {
 public:
  using Options = BertOptions;

  explicit BertImpl(const BertOptions& options = {});

  BertScores forward(const BertBatch& batch);
  /// The last layer's output, N x S x hidden.
  torch::Tensor encode(const BertBatch& batch);
  /// Of the masked tokens, and with labels for the next sentence of the pairs.
  LossTerms loss(const BertBatch& batch);
  BertMetrics metrics(const BertBatch& batch);

  const BertOptions& options() const { return options_; }
  /// "encoder.layer.0", ...: what each layer returns.
  std::vector<std::string> checkpoints() const;

 private:
  torch::Tensor embed(const BertBatch& batch);
  torch::Tensor masked_features(const torch::Tensor& encoded, const BertBatch& batch);
  torch::Tensor next_sentence_scores(const torch::Tensor& encoded);
  static LossTerms losses(const BertBatch& batch, const torch::Tensor& masked_lm_sum,
                          const torch::Tensor& next_sentence);

  BertOptions options_;
  ops::Embedding words_{nullptr}, positions_{nullptr}, types_{nullptr};
  ops::LayerNorm embedding_norm_{nullptr};
  std::vector<std::shared_ptr<BertLayerImpl>> layers_;
  ops::Linear pooler_{nullptr};
  ops::Linear transform_{nullptr};
  ops::LayerNorm transform_norm_{nullptr};
  torch::Tensor decoder_bias_;
  ops::Linear seq_relationship_{nullptr};
};

/// What a program holds; see BertImpl and Application.
class Bert : public Application<BertImpl> {
 public:
  using Application<BertImpl>::Application;

  /// Token files as batches for this model (masked_text.h); a vocabulary or a length that it has no
  /// room for is an Error.
  MaskedText load_digital_dataset_from_file(const MaskedTextOptions& options) const;
};

/// `options` with the sizes of BERT large instead of 0.
BertOptions bert_large_options(BertOptions options = {});
Bert BertBase(const BertOptions& options = {});
Bert BertLarge(const BertOptions& options = {});

// The guide's spelling.
inline Bert Bert_base(const BertOptions& options = {}) { return BertBase(options); }
inline Bert Bert_large(const BertOptions& options = {}) { return BertLarge(options); }

/// Sentences go round one of many short circles of words, so that a masked word follows from its
/// neighbours and its place; a second sentence that follows stays in the circle of the first.
/// Tokens 0 to 3 are padding, start, separator and mask. 15 % of the words are masked, as in the
/// paper.
BertBatch synthetic_batch(const BertOptions& options, int64_t batch_size, int64_t seed,
                          int64_t length = 128);

/// For applications.cpp.
ApplicationEntry bert_application();

}  // namespace fleet::applications
