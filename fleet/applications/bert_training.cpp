// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/bert_training.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "fleet/applications/data/synthetic_data.h"
#include "fleet/comm/world.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/data/phase.h"
#include "fleet/metrics/unigram.h"
#include "fleet/metrics/weighted_mean.h"
#include "fleet/train/program/train_epochs.h"

namespace fleet::applications {
namespace {

constexpr int64_t kSyntheticVocabulary = 516;  // all of the words that synthetic text has

MaskedText load(const BertDataOptions& own, const TrainConfig& config, Phase phase) {
  const bool is_train = phase == Phase::kTrain;
  const MaskedTextOptions options{.data_dir = own.data,
                                  .list = is_train ? "train.txt" : "val.txt",
                                  .vocab_path = std::filesystem::path(own.data) / "vocab.txt",
                                  .max_seq_len = own.seq,
                                  .batch_size = config.batch_size,
                                  .in_tokens = own.in_tokens,
                                  .seed = config.seed,
                                  .shuffle = is_train};
  if (own.data != "synthetic") return load_digital_dataset_from_file(options);
  return synthetic_text(kSyntheticVocabulary,
                        is_train ? SampleRange{.count = own.samples}
                                 : SampleRange{.first = own.samples, .count = own.samples / 20 + 1},
                        options);
}

// Takes the data by value: the position in it, and with that the masks, are the same every time.
void test(Bert& model, MaskedText text, const Unigram& unigram,
          const DistributedOptimizer& optimizer, int64_t epoch) {
  const torch::NoGradGuard no_grad;
  const auto autocast = optimizer.autocast();
  WeightedMean loss, baseline, words, pairs;
  model->eval();
  for (const auto& batch : text) {
    if (batch.size() == 0) continue;
    const auto seen = model.metrics(batch);
    const auto masked = static_cast<double>(batch.masked_labels.size(0));
    loss.add(seen.masked_lm_loss, masked);
    baseline.add(unigram.loss(batch.masked_labels), masked);
    words.add(seen.masked_lm_accuracy, masked);
    pairs.add(seen.next_sentence_accuracy, static_cast<double>(batch.size()));
  }
  model->train();
  for (auto* mean : {&loss, &baseline, &words, &pairs}) all_reduce_sum(mean->sums());
  log::info("test", format("epoch {}: masked-LM loss {:.5f} (unigram {:.5f}), masked-LM accuracy "
                           "{:.5f}, next-sentence accuracy {:.5f}, {}",
                           epoch, loss.value(), baseline.value(), words.value(), pairs.value(),
                           plural(std::llround(loss.weight()), "masked word")));
}

}  // namespace

const FieldList& fields_of(const BertDataOptions*) {
  using D = BertDataOptions;
  static const FieldList list{
      .area = "data",
      .fields = {
          field<&D::data>("data", "synthetic, or a folder with vocab.txt, train.txt and val.txt"),
          field<&D::seq>("seq", "maximum sequence length").at_least(8).in_unit("tokens"),
          field<&D::in_tokens>("in_tokens", "--batch_size counts tokens"),
          field<&D::samples>("samples", "synthetic samples to train on; a twentieth more to test")
              .at_least(1)
              .at_most(kMaxSyntheticSamples),
      }};
  return list;
}

BertData load_bert_data(const BertDataOptions& options, const TrainConfig& config) {
  return {load(options, config, Phase::kTrain), load(options, config, Phase::kTest)};
}

void train_bert(Bert& model, BertData& data, DistributedOptimizer& optimizer,
                const TrainConfig& config, const RunOptions& run) {
  int64_t available = 0;  // in tokens, epochs have unequal numbers of updates
  for (int64_t epoch = 0; epoch < config.epochs; ++epoch) available += data.train.updates_in(epoch);
  const int64_t updates = run.updates(available);
  const int64_t up = run.warmup_updates(updates);
  optimizer.set_schedule(optim::warmup(
      up, optim::linear({.lr = config.lr, .updates = std::max<int64_t>(1, updates - up)})));
  const Unigram unigram(data.train.token_counts());
  Snapshots snapshots(optimizer, config.snapshots, data.train);
  TrainingLog log(run, optimizer.attempts());
  train_epochs(
      config.epochs, optimizer, log, snapshots, [&](int64_t) -> MaskedText& { return data.train; },
      [&](const BertBatch& batch) {
        log.step(optimizer.minimize(
            batch, [&](const BertBatch& micro_batch) { return model.loss(micro_batch); }));
      },
      [&](int64_t epoch) { test(model, data.test, unigram, optimizer, epoch); });
}

}  // namespace fleet::applications
