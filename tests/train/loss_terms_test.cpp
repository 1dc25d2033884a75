// SPDX-License-Identifier: Apache-2.0
// Losses of several terms, each averaged over something else: the update of one batch comes out
// however the samples are spread over micro-batches and ranks.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/train/small_training.h"

namespace fleet {
namespace {

using testing::Comm;
using testing::copies;
using testing::error_message_of;
using testing::expect_close;
using testing::expect_equal;
using testing::run_ranks;
using testing::small_net;
using testing::small_optimizer;
using testing::Tensors;

// Samples with very unequal numbers of marked features: the first term is averaged over these, the
// second over samples.
struct MarkedBatch {
  torch::Tensor data;    // N x 6
  torch::Tensor target;  // N
  torch::Tensor marked;  // N: 0 to 19

  int64_t size() const { return data.size(0); }
  MarkedBatch slice(int64_t begin, int64_t end) const {
    return {data.slice(0, begin, end), target.slice(0, begin, end), marked.slice(0, begin, end)};
  }
};

// The same, and it tells the weights.
struct TellingBatch : MarkedBatch {
  TellingBatch slice(int64_t begin, int64_t end) const { return {MarkedBatch::slice(begin, end)}; }
  std::vector<double> loss_weights() const {
    return {marked.sum().item<double>(), static_cast<double>(size())};
  }
};

TellingBatch marked_batch(int64_t step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step) + 5);
  const auto marked = torch::tensor({1, 19, 0, 2, 17, 1, 0, 0, 9, 1, 3}, torch::kLong).roll(step);
  const auto samples = marked.size(0);
  return {
      {torch::randn({samples, 6}, generator), torch::randint(0, 3, {samples}, generator), marked}};
}

LossTerms terms_of(torch::nn::Sequential net, const MarkedBatch& batch) {
  const auto scores = net->forward(batch.data);
  const auto losses = torch::nn::functional::cross_entropy(
      scores, batch.target,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  return {.terms = {{(losses * batch.marked).sum(), batch.marked.sum().item<double>()},
                    {scores.square().sum() * 0.1, static_cast<double>(batch.size())}}};
}

enum class Form { kBatch, kTellingBatch, kClosure };

struct Result {
  Tensors parameters;
  std::vector<double> losses;
};

// Three updates; ranks have samples [0, 1), [1, 3), the rest: few, many, none marked.
Result train(int ranks, Form form, int64_t k_steps, DistributedStrategy strategy = {}) {
  Result result;
  strategy.gradient_merge = k_steps > 1;
  strategy.gradient_merge_configs.k_steps = static_cast<int>(k_steps);
  run_ranks(ranks, [&](const Comm& comm) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("Momentum", net, 0.1), strategy, comm);
    for (int64_t step = 0; step < 3; ++step) {
      const auto whole = marked_batch(step);
      const std::vector<int64_t> borders = ranks == 1 ? std::vector<int64_t>{0, whole.size()}
                                           : ranks == 2
                                               ? std::vector<int64_t>{0, 3, whole.size()}
                                               : std::vector<int64_t>{0, 1, 6, whole.size()};
      const auto own = whole.slice(borders[static_cast<size_t>(comm->rank())],
                                   borders[static_cast<size_t>(comm->rank()) + 1]);
      UpdateReport report;
      if (form == Form::kTellingBatch) {
        report = optimizer.minimize(own, [&](const TellingBatch& b) { return terms_of(net, b); });
      } else if (form == Form::kBatch) {
        const MarkedBatch& batch = own;
        report = optimizer.minimize(batch, [&](const MarkedBatch& b) { return terms_of(net, b); });
      } else {
        for (int64_t i = 0; i < k_steps; ++i) {
          const auto part = own.slice(own.size() * i / k_steps, own.size() * (i + 1) / k_steps);
          report = optimizer.minimize([&]() -> Loss { return terms_of(net, part); });
        }
      }
      EXPECT_TRUE(report.updated);
      if (comm->rank() == 0) result.losses.push_back(report.loss);
    }
    for (const auto& span : optimizer.arena().spans()) {
      if (comm->rank() == 0) result.parameters.push_back(span.value.detach().clone());
      if (!strategy.localsgd) {
        EXPECT_TRUE(testing::same_everywhere(comm, span.value));
      }
    }
  });
  return result;
}

void expect_same(const Result& got, const Result& expected) {
  expect_close(got.parameters, expected.parameters, 1e-5, 1e-6);
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], expected.losses[i], 1e-5);
  }
}

TEST(LossTermsTest, OneBatchIsAPlainTrainingLoop) {
  auto net = small_net();
  torch::optim::SGD plain(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<double> losses;
  for (int64_t step = 0; step < 3; ++step) {
    plain.zero_grad();
    const auto loss = terms_of(net, marked_batch(step)).mean();
    losses.push_back(loss.item<double>());
    loss.backward();
    plain.step();
  }
  expect_same(train(1, Form::kBatch, 1), {copies(net->parameters()), losses});
}

TEST(LossTermsTest, MicroBatchesAndRanksGiveTheUpdateOfOneBatch) {
  const auto whole = train(1, Form::kBatch, 1);
  for (const int ranks : {1, 2, 3}) {
    for (const int64_t k_steps : {1, 3}) {
      for (const auto form : {Form::kBatch, Form::kTellingBatch}) {
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << k_steps << " micro-batches, "
                                          << (form == Form::kBatch ? "" : "weights told"));
        expect_same(train(ranks, form, k_steps), whole);
      }
    }
  }
}

// Ranks with one sample have empty micro-batches in this form, so there are two ranks at most.
TEST(LossTermsTest, CallsOfMinimizeGiveTheUpdateOfOneBatch) {
  const auto whole = train(1, Form::kBatch, 1);
  for (const int ranks : {1, 2}) expect_same(train(ranks, Form::kClosure, 3), whole);
}

TEST(LossTermsTest, WorksUnderAmpRecomputeAndClipping) {
  const auto whole = train(1, Form::kBatch, 1, {.amp = true});
  for (const auto form : {Form::kTellingBatch, Form::kBatch}) {
    const auto got = train(2, form, 3, {.amp = true});
    expect_close(got.parameters, whole.parameters, 0.05, 0.01);
  }
}

TEST(LossTermsTest, ARankWithoutSamplesTakesPart) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net();
    auto alone = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), {}, comm);
    DistributedOptimizer plain(small_optimizer("SGD", alone, 0.1), {},
                               std::make_shared<comm::Communicator>());
    for (int64_t step = 0; step < 3; ++step) {
      const auto whole = marked_batch(step);
      const auto own = comm->rank() == step % 2 ? whole : whole.slice(0, 0);
      optimizer.minimize(own, [&](const TellingBatch& b) { return terms_of(net, b); });
      plain.minimize(whole, [&](const TellingBatch& b) { return terms_of(alone, b); });
    }
    expect_close(copies(net->parameters()), copies(alone->parameters()), 1e-5);
  });
}

TEST(LossTermsTest, WithLocalSgdEachRankDividesByItsOwn) {
  run_ranks(2, [](const Comm& comm) {
    auto net = small_net();
    auto alone = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1),
                                   {.localsgd = true, .localsgd_configs = {.k_steps = 100}}, comm);
    DistributedOptimizer plain(small_optimizer("SGD", alone, 0.1), {},
                               std::make_shared<comm::Communicator>());
    for (int64_t step = 0; step < 3; ++step) {
      const auto own = marked_batch(step).slice(comm->rank() * 4, comm->rank() * 4 + 5);
      optimizer.minimize(own, [&](const TellingBatch& b) { return terms_of(net, b); });
      plain.minimize(own, [&](const TellingBatch& b) { return terms_of(alone, b); });
    }
    expect_close(copies(net->parameters()), copies(alone->parameters()), 1e-5);
    optimizer.end_epoch();
  });
}

TEST(LossTermsTest, MistakesAreNamed) {
  auto net = small_net();
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), {},
                                 std::make_shared<comm::Communicator>());
  const auto batch = marked_batch(0);
  EXPECT_TRUE(
      says(error_message_of([&] { optimizer.minimize([&]() -> Loss { return LossTerms{}; }); }),
           "LossTerms without any term"));
  EXPECT_TRUE(says(error_message_of([&] {
                     optimizer.minimize(batch, [&](const TellingBatch& b) -> Loss {
                       auto terms = terms_of(net, b);
                       terms.terms.push_back(terms.terms[0]);
                       return terms;
                     });
                   }),
                   "the batch tells 2 weights, and the loss has 3 terms"));
  EXPECT_TRUE(says(error_message_of([&] {
                     optimizer.minimize(batch, [&](const TellingBatch& b) -> Loss {
                       auto terms = terms_of(net, b);
                       terms.terms[0].weight += 4;
                       return terms;
                     });
                   }),
                   "the batch tells weight 53 for term 0 of the loss"));
  EXPECT_EQ(optimizer.updates(), 0);
  optimizer.minimize(batch, [&](const TellingBatch& b) { return terms_of(net, b); });
  EXPECT_TRUE(says(error_message_of([&] {
                     optimizer.minimize([&]() -> Loss { return terms_of(net, batch).terms[0]; });
                   }),
                   "the loss has one term here, and 2 in other micro-batches"));
}

}  // namespace
}  // namespace fleet
