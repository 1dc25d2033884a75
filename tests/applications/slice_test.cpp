// SPDX-License-Identifier: Apache-2.0
// Micro-batches add up to the batch, also where tokens are spread unevenly.
#include <mutex>

#include <gtest/gtest.h>

#include "fleet/applications/data/synthetic.h"
#include "fleet/optim/sgd.h"
#include "fleet/train/distributed_optimizer.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/support/thread_ranks.h"

namespace fleet::applications {
namespace {

Bert small_bert() {
  torch::manual_seed(5);
  Bert model(BertOptions{.vocab = 60,
                         .hidden = 16,
                         .layers = 2,
                         .heads = 2,
                         .intermediate = 32,
                         .max_positions = 64,
                         .hidden_dropout = 0,
                         .attention_dropout = 0,
                         .init_std = 0.3});
  model->to(torch::kDouble);
  return model;
}

Transformer small_transformer() {
  torch::manual_seed(5);
  Transformer model(TransformerOptions{.source_vocab = 40,
                                       .target_vocab = 40,
                                       .width = 16,
                                       .feed_forward = 32,
                                       .heads = 2,
                                       .encoder_layers = 1,
                                       .decoder_layers = 1,
                                       .dropout = 0});
  model->to(torch::kDouble);
  return model;
}

template <typename Model>
std::vector<torch::Tensor> gradients(const Model& model) {
  std::vector<torch::Tensor> out;
  for (const auto& parameter : model.parameters()) {
    out.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  return out;
}

std::vector<WeightedLoss> terms_of(const LossTerms& loss) { return loss.terms; }
std::vector<WeightedLoss> terms_of(const WeightedLoss& loss) { return {loss}; }

// Each term of a micro-batch, divided by its weight in the whole batch.
template <typename Model, typename Batch>
void expect_slices_add_up(const Model& model, const Batch& batch,
                          const std::vector<int64_t>& borders) {
  const auto whole = model.loss(batch);
  whole.mean().backward();
  const auto expected = gradients(model);
  double sum = 0;
  std::vector<double> weights(terms_of(whole).size(), 0);
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    const auto micro_batch = batch.slice(borders[i], borders[i + 1]);
    EXPECT_EQ(micro_batch.size(), borders[i + 1] - borders[i]);
    const auto terms = terms_of(model.loss(micro_batch));
    ASSERT_EQ(terms.size(), weights.size());
    for (size_t t = 0; t < terms.size(); ++t) {
      const auto loss = terms[t].sum / terms_of(whole)[t].weight;
      weights[t] += terms[t].weight;
      sum += loss.template item<double>();
      loss.backward({}, /*retain_graph=*/true);
    }
  }
  for (size_t t = 0; t < weights.size(); ++t) EXPECT_EQ(weights[t], terms_of(whole)[t].weight);
  EXPECT_NEAR(sum, whole.mean().template item<double>(), 1e-12);
  const auto got = gradients(model);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::allclose(got[i], expected[i], 1e-9, 1e-12)) << "parameter " << i;
  }
}

TEST(BertBatchTest, SlicesAddUpToTheBatch) {
  const auto model = small_bert();
  const auto batch = synthetic_batch(model.options(), 7, 11, 40);
  expect_slices_add_up(model, batch, {0, 2, 3, 7});
}

// The same in `minimize`: it splits the batch, and weights and adds up the micro-batches.
TEST(BertBatchTest, GradientMergeMakesTheSameUpdate) {
  const auto trained = [](const DistributedStrategy& strategy) {
    auto model = small_bert();
    model->to(torch::kFloat);
    auto optimizer = distributed_optimizer(optim::SGD(model, {.lr = 0.1}), strategy);
    for (int64_t step = 0; step < 2; ++step) {
      const auto report =
          optimizer.minimize(synthetic_batch(model.options(), 7, step, 40),
                             [&](const auto& micro_batch) { return model.loss(micro_batch); });
      EXPECT_TRUE(report.updated);
    }
    return model.parameters();
  };
  const auto whole = trained({});
  const auto merged = trained({.gradient_merge = true, .gradient_merge_configs = {.k_steps = 3}});
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(torch::allclose(merged[i], whole[i], 1e-5, 1e-6)) << "parameter " << i;
  }
}

// Samples as unequal as they can be: one masked token and nineteen, short targets and long ones.
BertBatch unequal_batch(const Bert& model, int64_t step) {
  auto batch = synthetic_batch(model.options(), 6, step, 40);
  std::vector<int64_t> positions;
  const std::vector<int64_t> counts = {1, 19, 2, 0, 15, 1};
  for (int64_t sample = 0; sample < 6; ++sample) {
    for (int64_t i = 0; i < counts[static_cast<size_t>(sample)]; ++i) {
      positions.push_back(sample * 40 + 1 + 2 * i);
    }
  }
  batch.masked_positions = torch::tensor(positions, torch::kLong);
  batch.masked_labels = batch.token_ids.flatten().index_select(0, batch.masked_positions);
  return batch;
}

TransformerBatch unequal_batch(const Transformer& model, int64_t step) {
  auto batch = synthetic_batch(model.options(), 6, step, 12);
  const auto length = batch.target_mask.size(1);
  batch.target_mask = torch::arange(length).unsqueeze(0).lt(
      torch::tensor({1, static_cast<int>(length), 2, 1, static_cast<int>(length), 1}).unsqueeze(1));
  return batch;
}

// Three updates in which ranks have samples [0, 1) and [1, 6).
template <typename Make>
std::vector<torch::Tensor> trained(const Make& make, int ranks, int64_t k_steps) {
  std::vector<torch::Tensor> result;
  std::mutex mutex;  // ranks are threads, and weights are drawn from the process's generator
  fleet::testing::run_ranks(ranks, [&](const fleet::testing::Comm& comm) {
    auto model = [&] {
      const std::lock_guard lock(mutex);
      auto made = make();
      made->to(torch::kFloat);
      return made;
    }();
    DistributedStrategy strategy;
    strategy.gradient_merge = k_steps > 1;
    strategy.gradient_merge_configs.k_steps = static_cast<int>(k_steps);
    DistributedOptimizer optimizer(
        std::make_unique<optim::SGD>(model, optim::SgdOptions{.lr = 0.1}), strategy, comm);
    for (int64_t step = 0; step < 3; ++step) {
      const auto whole = unequal_batch(model, step);
      const auto own = ranks == 1          ? whole
                       : comm->rank() == 0 ? whole.slice(0, 1)
                                           : whole.slice(1, 6);
      optimizer.minimize(own, [&](const auto& micro_batch) { return model.loss(micro_batch); });
    }
    if (comm->rank() == 0) {
      for (const auto& parameter : model.parameters()) result.push_back(parameter.detach().clone());
    }
  });
  return result;
}

template <typename Make>
void expect_the_update_of_one_batch(const Make& make) {
  const auto whole = trained(make, 1, 1);
  for (const int ranks : {1, 2}) {
    for (const int64_t k_steps : {1, 3}) {
      const auto got = trained(make, ranks, k_steps);
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_TRUE(torch::allclose(got[i], whole[i], 1e-4, 1e-6))
            << "parameter " << i << " with " << ranks << " ranks, " << k_steps << " micro-batches";
      }
    }
  }
}

TEST(BertBatchTest, RanksAndMicroBatchesMakeTheUpdateOfOneBatch) {
  expect_the_update_of_one_batch(small_bert);
}

TEST(TransformerBatchTest, RanksAndMicroBatchesMakeTheUpdateOfOneBatch) {
  expect_the_update_of_one_batch(small_transformer);
}

TEST(BertBatchTest, APartWithoutMaskedTokensCountsToo) {
  const auto model = small_bert();
  auto batch = synthetic_batch(model.options(), 4, 12, 30);
  const auto is_kept = batch.masked_positions.ge(2 * 30);
  batch.masked_positions = batch.masked_positions.masked_select(is_kept).flip(0);  // any order
  batch.masked_labels = batch.masked_labels.masked_select(is_kept).flip(0);
  EXPECT_EQ(batch.slice(0, 2).masked_labels.size(0), 0);
  expect_slices_add_up(model, batch, {0, 2, 3, 4});
}

TEST(BertBatchTest, CountsPositionsFromTheFirstSampleOfThePart) {
  const auto batch = synthetic_batch(small_bert().options(), 5, 13, 24);
  const auto part = batch.slice(2, 4);
  ASSERT_GT(part.masked_positions.size(0), 2);
  const auto mine = part.token_ids.flatten().index_select(0, part.masked_positions);
  const auto is_in =
      batch.masked_positions.ge(2 * 24).logical_and(batch.masked_positions.lt(4 * 24));
  const auto theirs =
      batch.token_ids.flatten().index_select(0, batch.masked_positions.masked_select(is_in));
  EXPECT_TRUE(mine.equal(theirs));
  EXPECT_TRUE(part.masked_positions.lt(2 * 24).all().item<bool>());
  EXPECT_TRUE(part.token_ids.equal(batch.token_ids.slice(0, 2, 4)));
  EXPECT_TRUE(part.next_sentence_labels.equal(batch.next_sentence_labels.slice(0, 2, 4)));
}

TEST(BertBatchTest, RefusesSamplesThatAreNotThere) {
  const auto batch = synthetic_batch(small_bert().options(), 5, 13, 24);
  EXPECT_TRUE(says(fleet::testing::error_message_of([&] { batch.slice(3, 6); }),
                   "samples [3, 6) of a batch of 5"));
}

TEST(BertTest, DoesWithoutNextSentencesTypesAndPadding) {
  const auto model = small_bert();
  auto batch = synthetic_batch(model.options(), 3, 14, 24);
  const auto both = model.metrics(batch);
  batch.next_sentence_labels.reset();
  const auto one = model.metrics(batch);
  EXPECT_EQ(one.loss.item<double>(), both.masked_lm_loss.item<double>());
  EXPECT_EQ(one.next_sentence_loss.item<double>(), 0);

  batch.token_type_ids.zero_();
  const auto with = model.loss(batch).mean().item<double>();
  batch.token_type_ids.reset();
  EXPECT_NEAR(model.loss(batch).mean().item<double>(), with, 1e-12);
  batch.attention_mask.fill_(1);
  const auto unpadded = model.loss(batch).mean().item<double>();
  EXPECT_NE(unpadded, with);
  batch.attention_mask.reset();
  EXPECT_NEAR(model.loss(batch).mean().item<double>(), unpadded, 1e-12);
}

TEST(BertTest, PaddingChangesNothing) {
  const auto model = small_bert();
  auto batch = synthetic_batch(model.options(), 3, 14, 24);
  const auto before = model.loss(batch).mean().item<double>();
  batch.token_ids.masked_fill_(batch.attention_mask.eq(0), 9);
  EXPECT_NEAR(model.loss(batch).mean().item<double>(), before, 1e-12);
}

TEST(TransformerBatchTest, SlicesAddUpToTheBatch) {
  const auto model = small_transformer();
  const auto batch = synthetic_batch(model.options(), 7, 11, 12);
  ASSERT_NE(batch.slice(0, 2).target_mask.sum().item<int64_t>() * 7,
            batch.target_mask.sum().item<int64_t>() * 2);  // uneven
  expect_slices_add_up(model, batch, {0, 2, 3, 7});
}

TEST(TransformerTest, SeesNeitherPaddingNorWhatComesLater) {
  auto model = small_transformer();
  auto batch = synthetic_batch(model.options(), 4, 3, 12);
  const auto before = model->forward(batch);
  auto other = batch;
  other.source = batch.source.masked_fill(batch.source_mask.eq(0), 7);
  EXPECT_TRUE(torch::allclose(model->forward(other), before, 1e-9, 1e-12));
  other = batch;
  other.target = batch.target.clone();
  other.target.select(1, 6).fill_(8);
  const auto after = model->forward(other);
  EXPECT_TRUE(torch::allclose(after.slice(1, 0, 6), before.slice(1, 0, 6), 1e-9, 1e-12));
  EXPECT_FALSE(torch::allclose(after.slice(1, 6), before.slice(1, 6), 1e-3, 1e-3));
}

}  // namespace
}  // namespace fleet::applications
