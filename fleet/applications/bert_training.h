// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "fleet/applications/bert.h"
#include "fleet/core/options/options.h"
#include "fleet/data/text/masked_text.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/program/run_options.h"
#include "fleet/train/program/train_config.h"

namespace fleet::applications {

/// Which text a program trains on, from its command line.
struct BertDataOptions {
  std::string data = "synthetic";
  int64_t seq = 128;
  bool in_tokens = false;
  int64_t samples = 20000;
};

const FieldList& fields_of(const BertDataOptions*);

/// Text to train on and text to test with; each rank gets its shard.
struct BertData {
  MaskedText train;
  MaskedText test;
};

/// `options.data` is "synthetic" (synthetic_data.h), or a folder with vocab.txt and the lists
/// train.txt and val.txt, which name files of token lines in it (text_samples.h).
///
///   auto data = load_bert_data(options, config);
///   Bert model(BertOptions{.vocab = data.train.vocabulary().size()});
BertData load_bert_data(const BertDataOptions& options, const TrainConfig& config);

/// Epochs over text: up to `config.lr` and down in a straight line to 0, the guide's lines
/// (TrainingLog), and after every epoch a test over all ranks, which masks the same words each
/// time. "unigram" is what knowing the words' frequencies alone would score (unigram.h).
///
///   worker_index: 0, step9 cost = 7.500000, total time cost = 2.5, ...
///   [test] epoch 0: masked-LM loss 4.10512 (unigram 6.01233), masked-LM accuracy 0.31200, ...
void train_bert(Bert& model, BertData& data, DistributedOptimizer& optimizer,
                const TrainConfig& config, const RunOptions& run);

}  // namespace fleet::applications
