// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fleet/applications/application.h"
#include "fleet/applications/data/transformer_batch.h"
#include "fleet/ops/layers/attention.h"
#include "fleet/ops/layers/embedding.h"
#include "fleet/ops/layers/layer_norm.h"
#include "fleet/ops/layers/linear.h"

namespace fleet::applications {

struct ApplicationEntry;

/// A size that is 0, or nothing, is that of the named model, or else of the paper's base model.
struct TransformerOptions {
  int64_t source_vocab = 37000;
  int64_t target_vocab = 37000;
  int64_t width = 0;         // 512; big: 1024
  int64_t feed_forward = 0;  // 2048; big: 4096
  int64_t heads = 0;         // 8; big: 16
  int64_t encoder_layers = 6;
  int64_t decoder_layers = 6;
  int64_t max_positions = 1024;
  std::optional<double> dropout = {};  // of each block and the embeddings: 0.1; big: 0.3
  double attention_dropout = 0;        // of the attention's weights; torch.nn takes `dropout` here
  double activation_dropout = 0;       // behind the feed-forward's relu; likewise
  double label_smoothing = 0.1;
  bool shared_embeddings = true;  // one table for source, target and scores; needs one vocabulary
  bool final_norm = false;        // a norm behind each stack, as torch.nn.Transformer has it
  ops::AttentionPath attention_path = ops::AttentionPath::kAuto;
  torch::Device device = torch::kCPU;

  /// With those of the base model where something is left open.
  TransformerOptions resolved() const;
};
const FieldList& fields_of(const TransformerOptions*);

/// Metrics of one batch, from one forward; each a tensor of one number.
struct TransformerMetrics {
  torch::Tensor loss;                     // with label smoothing; differentiable
  torch::Tensor negative_log_likelihood;  // without; its exponential is the perplexity
  torch::Tensor accuracy;                 // fraction of tokens that got the highest score
};

class EncoderLayerImpl;
class DecoderLayerImpl;

/// Vaswani et al., arXiv 1706.03762: post-norm, sinusoidal positions, embeddings times sqrt(width).
///
/// The layers have the names of torch.nn.Transformer ("encoder.layers.0.self_attn.in_proj_weight").
/// Around them: "embedding.weight", or "source_embedding.weight", "target_embedding.weight" and
/// "generator.weight" when they are not shared. Matrices start from Xavier's uniform distribution,
/// embeddings from a normal one with variance 1 / width.
///
///   auto model = TransformerBig();
///   auto loss = model.loss(batch);
///   auto scores = model->forward(batch);   // N x T x target_vocab
class TransformerImpl : public torch::nn::Module {
 public:
  using Options = TransformerOptions;

  explicit TransformerImpl(const TransformerOptions& options = {});

  torch::Tensor forward(const TransformerBatch& batch);
  /// N x S x width.
  torch::Tensor encode(const torch::Tensor& source, const ops::AttentionMask& mask);
  /// Scores of what follows each token of `target` (N x T), which may look at itself and what
  /// stands before it.
  torch::Tensor decode(const torch::Tensor& target, const torch::Tensor& memory,
                       const ops::AttentionMask& memory_mask);
  /// Over the target's tokens.
  WeightedLoss loss(const TransformerBatch& batch);
  TransformerMetrics metrics(const TransformerBatch& batch);

  const TransformerOptions& options() const { return options_; }
  /// "encoder.layers.0", ..., "decoder.layers.0", ...: what each layer returns.
  std::vector<std::string> checkpoints() const;

 private:
  torch::Tensor embed(ops::Embedding& table, const torch::Tensor& tokens);
  /// Before the scores.
  torch::Tensor features(const TransformerBatch& batch);
  torch::Tensor decode_features(const torch::Tensor& target, const torch::Tensor& memory,
                                const ops::AttentionMask& memory_mask);
  const torch::Tensor& score_weight() const;

  TransformerOptions options_;
  torch::Tensor positions_;  // no parameter and no buffer: it follows from the options
  ops::Embedding source_embedding_{nullptr}, target_embedding_{nullptr};
  std::vector<std::shared_ptr<EncoderLayerImpl>> encoder_;
  std::vector<std::shared_ptr<DecoderLayerImpl>> decoder_;
  ops::LayerNorm encoder_norm_{nullptr}, decoder_norm_{nullptr};
  ops::Linear generator_{nullptr};
};
using Transformer = Application<TransformerImpl>;

/// `options` with what the paper's big model has, where they leave something open.
TransformerOptions transformer_big_options(TransformerOptions options = {});
Transformer TransformerBase(const TransformerOptions& options = {});
Transformer TransformerBig(const TransformerOptions& options = {});

/// The target is the source in reverse. Tokens 0 to 2 are padding, start and end; sources have
/// between half of `length` and all of it, and end with the end token.
TransformerBatch synthetic_batch(const TransformerOptions& options, int64_t batch_size,
                                 int64_t seed, int64_t length = 32);

/// For applications.cpp.
ApplicationEntry transformer_application();

}  // namespace fleet::applications
