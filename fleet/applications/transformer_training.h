// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "fleet/applications/transformer.h"
#include "fleet/core/options/options.h"
#include "fleet/data/data_loader.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/program/run_options.h"
#include "fleet/train/program/train_config.h"

namespace fleet::applications {

/// Which translations a program trains on, from its command line.
struct TransformerDataOptions {
  std::string data = "synthetic";
  int64_t seq = 32;
  int64_t samples = 20000;
};

const FieldList& fields_of(const TransformerDataOptions*);

/// Pairs to train on and pairs to test with; each rank gets its shard.
struct TransformerData {
  DataLoader<Batch> train;
  DataLoader<Batch> test;
  int64_t vocab = 0;
  int64_t pad = 0;
};

/// `options.data` is "synthetic" (sequences and their reverse, synthetic_data.h), or a folder with
/// vocab.txt and the texts train.src, train.tgt, val.src and val.tgt (parallel_text.h).
///
///   auto data = load_transformer_data(options, config);
///   Transformer model(TransformerOptions{.source_vocab = data.vocab, .target_vocab = data.vocab});
TransformerData load_transformer_data(const TransformerDataOptions& options,
                                      const TrainConfig& config);

/// Epochs over pairs: up to `config.lr` and down with the inverse square root of the updates, the
/// guide's lines (TrainingLog), and a test after every epoch over all ranks. The loss has the
/// model's label smoothing, the perplexity has none.
///
///   worker_index: 0, step9 cost = 7.500000, total time cost = 2.5, ...
///   [test] epoch 0: loss 2.10512, perplexity 5.30000, token accuracy 0.61200, 16000 tokens
void train_transformer(Transformer& model, TransformerData& data, DistributedOptimizer& optimizer,
                       const TrainConfig& config, const RunOptions& run);

}  // namespace fleet::applications
