// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/transformer_training.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "fleet/applications/data/synthetic_data.h"
#include "fleet/comm/world.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/data/phase.h"
#include "fleet/data/text/parallel_text.h"
#include "fleet/metrics/weighted_mean.h"
#include "fleet/train/program/train_epochs.h"

namespace fleet::applications {
namespace {

constexpr int64_t kSyntheticTokens = 67;  // all of the words that synthetic sequences have

using Pairs = std::shared_ptr<const Dataset>;

TransformerData make_loaders(const Pairs& train, const Pairs& test, const TrainConfig& config) {
  LoaderOptions options{.batch_size = config.batch_size, .seed = config.seed};
  DataLoader training(train, options);
  options.shuffle = false;
  return {.train = std::move(training), .test = DataLoader(test, options)};
}

// Of a model that has diverged it is beyond every number that a double holds.
std::string perplexity_text(double negative_log_likelihood) {
  const double perplexity = std::exp(negative_log_likelihood);
  return std::isfinite(perplexity) ? format("{:.5f}", perplexity)
                                   : format("e^{:.0f}", negative_log_likelihood);
}

void test(Transformer& model, TransformerData& data, const DistributedOptimizer& optimizer,
          int64_t epoch) {
  const torch::NoGradGuard no_grad;
  const auto autocast = optimizer.autocast();
  WeightedMean loss, likelihood, right;
  model->eval();
  for (const auto& pairs : data.test.epoch(0)) {
    if (pairs.size() == 0) continue;
    const auto batch = TransformerBatch::padded(pairs.data, pairs.target, data.pad);
    const auto seen = model.metrics(batch);
    const auto tokens = batch.target_mask.sum().item<double>();
    loss.add(seen.loss, tokens);
    likelihood.add(seen.negative_log_likelihood, tokens);
    right.add(seen.accuracy, tokens);
  }
  model->train();
  for (auto* mean : {&loss, &likelihood, &right}) all_reduce_sum(mean->sums());
  log::info("test", format("epoch {}: loss {:.5f}, perplexity {}, token accuracy {:.5f}, {}", epoch,
                           loss.value(), perplexity_text(likelihood.value()), right.value(),
                           plural(std::llround(loss.weight()), "token")));
}

}  // namespace

const FieldList& fields_of(const TransformerDataOptions*) {
  using D = TransformerDataOptions;
  static const FieldList list{
      .area = "data",
      .fields = {
          field<&D::data>("data",
                          "synthetic, or a folder with vocab.txt, train.src, train.tgt, val.src "
                          "and val.tgt"),
          field<&D::seq>("seq", "maximum sequence length, end token included")
              .at_least(2)
              .in_unit("tokens"),
          field<&D::samples>("samples", "synthetic samples to train on; a twentieth more to test")
              .at_least(1)
              .at_most(kMaxSyntheticSamples),
      }};
  return list;
}

TransformerData load_transformer_data(const TransformerDataOptions& options,
                                      const TrainConfig& config) {
  if (options.data == "synthetic") {
    const SampleRange train{.count = options.samples};
    const SampleRange test{.first = options.samples, .count = options.samples / 20 + 1};
    auto data = make_loaders(synthetic_translation(kSyntheticTokens, options.seq, train),
                             synthetic_translation(kSyntheticTokens, options.seq, test), config);
    data.vocab = kSyntheticTokens;
    return data;
  }
  const std::filesystem::path folder = options.data;
  const WordPiece tokenizer(Vocabulary::load(folder / "vocab.txt"));
  const auto load = [&](const std::string& name) {
    return std::make_shared<ParallelText>(folder / (name + ".src"), folder / (name + ".tgt"),
                                          tokenizer, options.seq);
  };
  auto data = make_loaders(load("train"), load("val"), config);
  data.vocab = tokenizer.vocabulary().size();
  data.pad = tokenizer.vocabulary().pad();
  return data;
}

void train_transformer(Transformer& model, TransformerData& data, DistributedOptimizer& optimizer,
                       const TrainConfig& config, const RunOptions& run) {
  const int64_t up = std::max<int64_t>(
      1, run.warmup_updates(run.updates(config.epochs * data.train.batches_per_epoch())));
  optimizer.set_schedule(optim::warmup(up, optim::inverse_sqrt({.lr = config.lr, .offset = up})));
  Snapshots snapshots(optimizer, config.snapshots, data.train);
  TrainingLog log(run, optimizer.attempts());
  train_epochs(
      config.epochs, optimizer, log, snapshots,
      [&](int64_t epoch) { return data.train.epoch(epoch); },
      [&](const Batch& pairs) {
        const auto batch = TransformerBatch::padded(pairs.data, pairs.target, data.pad);
        log.step(optimizer.minimize(
            batch, [&](const TransformerBatch& micro_batch) { return model.loss(micro_batch); }));
      },
      [&](int64_t epoch) { test(model, data, optimizer, epoch); });
}

}  // namespace fleet::applications
