// SPDX-License-Identifier: Apache-2.0
// Losses of several terms, each averaged over something else: the update of one batch comes out
// however the samples are spread over micro-batches and ranks.
#include <span>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "fleet/core/text/format.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/train/block_net.h"

namespace fleet {
namespace {

using testing::BlockNet;
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

TEST(LossTermsTest, WorksUnderAmp) {
  const auto whole = train(1, Form::kBatch, 1, {.amp = true});
  for (const auto form : {Form::kTellingBatch, Form::kBatch}) {
    const auto got = train(2, form, 3, {.amp = true});
    expect_close(got.parameters, whole.parameters, 0.05, 0.01);
  }
}

// ---- in a deep net, whose forward is recomputed

enum class DeepForm { kWhole, kClosure, kEager };

constexpr int64_t kDeepSamples = 768, kDeepMicroBatches = 3;

struct DeepTerms {
  int ranks = 1;
  DeepForm form = DeepForm::kWhole;
  DistributedStrategy strategy = {};
  double max_grad_norm = 0;
  int64_t updates = 3;
  int64_t blocks = 6;
  int64_t samples = kDeepSamples;
};

// The first term counts the targets that are 0, of which some micro-batches have none.
LossTerms terms_of(BlockNet net, const Batch& batch) {
  const auto scores = net->forward(batch.data);
  const auto losses = torch::nn::functional::cross_entropy(
      scores, batch.target,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  const auto is_rare = batch.target.eq(0).to(torch::kFloat);
  return {.terms = {{(losses * is_rare).sum(), is_rare.sum().item<double>()},
                    {scores.square().sum() * 0.1, static_cast<double>(batch.size())}}};
}

struct DeepResult {
  Tensors parameters;
  std::vector<UpdateReport> reports;
};

DeepResult train(const DeepTerms& setup) {
  at::set_num_threads(1);
  DeepResult result;
  run_ranks(setup.ranks, [&](const Comm& comm) {
    BlockNet net(testing::BlockNetOptions{.blocks = setup.blocks, .width = 64, .norm = false});
    auto strategy = setup.strategy;
    strategy.gradient_merge = setup.form != DeepForm::kWhole;
    strategy.gradient_merge_configs.k_steps = strategy.gradient_merge ? kDeepMicroBatches : 1;
    DistributedOptimizer optimizer(
        std::make_unique<optim::Momentum>(
            net, optim::MomentumOptions{.lr = 0.1, .max_grad_norm = setup.max_grad_norm}),
        strategy, comm);
    for (int64_t step = 0; step < setup.updates; ++step) {
      auto whole = testing::small_batch(setup.samples, step);
      whole.target.slice(0, 0, setup.samples / 3).fill_(1);
      const auto own = whole.slice(setup.samples * comm->rank() / comm->size(),
                                   setup.samples * (comm->rank() + 1) / comm->size());
      UpdateReport report;
      int64_t evicted = 0;
      if (setup.form == DeepForm::kWhole) {
        report = optimizer.minimize(own, [&](const Batch& b) { return terms_of(net, b); });
      } else {
        for (int64_t i = 0; i < kDeepMicroBatches; ++i) {
          const auto part = own.slice(own.size() * i / kDeepMicroBatches,
                                      own.size() * (i + 1) / kDeepMicroBatches);
          if (setup.form == DeepForm::kClosure) {
            report = optimizer.minimize([&]() -> Loss { return terms_of(net, part); });
            continue;
          }
          Loss loss;
          {
            const auto scope = optimizer.forward(part.size());
            loss = terms_of(net, part);
          }
          evicted += optimizer.backward(loss).memory.evicted;
        }
        if (setup.form == DeepForm::kEager) report = optimizer.step();
      }
      report.memory.evicted += evicted;
      EXPECT_TRUE(report.updated);
      if (comm->rank() == 0) result.reports.push_back(report);
    }
    if (comm->rank() == 0) result.parameters = copies(net->parameters());
  });
  return result;
}

DistributedStrategy recomputed(const testing::BlockNetOptions& net = {.blocks = 6}) {
  return {.recompute = true,
          .recompute_configs = {.checkpoints = testing::BlockNetImpl(net).checkpoints()}};
}

TEST(LossTermsTest, RecomputeOffloadAndClippingChangeNothing) {
  auto offloaded = recomputed();
  offloaded.recompute_configs.enable_offload = true;
  for (const double max_grad_norm : {0.0, 0.05}) {
    const auto whole = train(DeepTerms{.max_grad_norm = max_grad_norm});
    for (const auto& report : whole.reports) EXPECT_GT(*report.gradient_norm, 0.05);
    for (const auto& strategy : {DistributedStrategy{}, recomputed(), offloaded}) {
      for (const auto form : {DeepForm::kClosure, DeepForm::kEager}) {
        for (const int ranks : {1, 2}) {
          SCOPED_TRACE(::testing::Message()
                       << "norm " << max_grad_norm << ", recompute " << strategy.recompute
                       << ", offload " << strategy.recompute_configs.enable_offload << ", form "
                       << static_cast<int>(form) << ", " << ranks << " ranks");
          const auto got = train(
              {.ranks = ranks, .form = form, .strategy = strategy, .max_grad_norm = max_grad_norm});
          expect_close(got.parameters, whole.parameters, 1e-5, 1e-6);
          EXPECT_EQ(got.reports.back().memory.evicted > 0, strategy.recompute);
        }
      }
    }
  }
}

TEST(LossTermsTest, ARoomyBudgetChangesNothing) {
  const auto whole = train(DeepTerms{});
  for (const auto form : {DeepForm::kClosure, DeepForm::kEager}) {
    DistributedStrategy strategy{.recompute = true};
    strategy.recompute_configs.memory_budget = "1GiB";  // ranks are threads here, with one account
    for (const int ranks : {1, 2}) {
      const auto got = train({.ranks = ranks, .form = form, .strategy = strategy});
      expect_close(got.parameters, whole.parameters, 1e-5, 1e-6);
    }
  }
}

// A graph that is kept for a backward of each term holds what the forward kept until the last.
TEST(LossTermsTest, ATightBudgetChangesNothing) {
  DeepTerms setup{.updates = 4, .blocks = 16, .samples = 4 * kDeepSamples};
  const auto whole = train(setup);
  const auto expect_within = [&](const std::string& budget, size_t first_within) {
    SCOPED_TRACE(budget);
    setup.strategy = {.recompute = true};
    setup.strategy.recompute_configs.memory_budget = budget;
    const auto got = train(setup);
    expect_close(got.parameters, whole.parameters, 1e-5, 1e-6);
    for (const auto& report : std::span(got.reports).subspan(first_within)) {
      EXPECT_GT(report.memory.evicted, 0);
      EXPECT_LE(report.memory.measured_peak, report.memory.budget);
    }
    return got.reports.back().memory.budget;
  };
  for (const auto form : {DeepForm::kClosure, DeepForm::kEager}) {
    SCOPED_TRACE(static_cast<int>(form));
    setup.form = form;
    for (const int percent : {70, 50, 33}) {
      // The first window measures what plain training takes, and is not limited.
      const auto bytes = expect_within(format("{}% of plain", percent), 1);
      expect_within(format("{}KiB", bytes / 1024), 0);
    }
  }
}

// ---- terms without anything to average over

struct RareTraining {
  int ranks = 1;
  bool by_hand = false;
  DistributedStrategy strategy = {};
};

// The rare term has nothing to average over. `order`: which of the two come, and in what order.
DeepResult train_rare(const RareTraining& setup, const std::vector<size_t>& order) {
  DeepResult result;
  std::mutex mutex;
  run_ranks(setup.ranks, [&](const Comm& comm) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), setup.strategy, comm);
    for (int64_t step = 0; step < 3; ++step) {
      const auto batch = testing::small_batch(comm->rank() == 0 ? 12 : 4, 2 * step + comm->rank());
      const auto loss = [&]() -> Loss {
        const auto losses = torch::nn::functional::cross_entropy(
            net->forward(batch.data), batch.target,
            torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
        const WeightedLoss terms[] = {{(losses * 0).sum(), 0},
                                      {losses.sum(), static_cast<double>(batch.size())}};
        if (order.size() == 1) return terms[order[0]];
        return LossTerms{.terms = {terms[order[0]], terms[order[1]]}};
      };
      UpdateReport report;
      double own_weight = 0;
      if (setup.by_hand) {
        own_weight = optimizer.backward(loss()).own_weight;
        report = optimizer.step();
      } else {
        report = optimizer.minimize(loss);
        own_weight = report.own_weight;
      }
      EXPECT_TRUE(report.updated);
      EXPECT_EQ(own_weight, batch.size());
      if (comm->rank() == 0) result.reports.push_back(report);
    }
    optimizer.end_epoch();
    const std::lock_guard lock(mutex);
    if (comm->rank() == 0) result.parameters = copies(net->parameters());
  });
  return result;
}

TEST(LossTermsTest, ATermOfWeightZeroMayStandAnywhere) {
  for (const bool is_local : {false, true}) {
    for (const bool by_hand : {false, true}) {
      for (const int ranks : {1, 2}) {
        SCOPED_TRACE(::testing::Message()
                     << "local SGD " << is_local << ", by hand " << by_hand << ", " << ranks);
        const RareTraining setup{
            .ranks = ranks,
            .by_hand = by_hand,
            .strategy = {.localsgd = is_local, .localsgd_configs = {.k_steps = 2}}};
        const auto without = train_rare(setup, {1});
        for (const auto& order : {std::vector<size_t>{0, 1}, std::vector<size_t>{1, 0}}) {
          const auto got = train_rare(setup, order);
          expect_close(got.parameters, without.parameters, 1e-5, 1e-6);
          for (size_t i = 0; i < got.reports.size(); ++i) {
            EXPECT_EQ(got.reports[i].weight, without.reports[i].weight);
          }
        }
      }
    }
  }
}

// In half the gradient of a sum leaves the range that the gradient of a mean stays in.
TEST(LossTermsTest, ATermThatBeginsWithWeightZeroDoesNotOverflow) {
  auto net = small_net();
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1),
                                 {.amp = true,
                                  .amp_configs = {.dtype = "fp16"},
                                  .gradient_merge = true,
                                  .gradient_merge_configs = {.k_steps = 3}},
                                 std::make_shared<comm::Communicator>());
  UpdateReport report;
  for (int64_t i = 0; i < 3; ++i) {
    const auto batch = testing::small_batch(64, i);
    report = optimizer.minimize([&]() -> Loss {
      const auto losses = torch::nn::functional::cross_entropy(
          net->forward(batch.data), batch.target,
          torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
      const double each = i == 0 ? 0 : 100;
      return LossTerms{.terms = {{losses.sum() * each, 64 * each}, {losses.sum(), 64}}};
    });
  }
  EXPECT_TRUE(report.updated);
  EXPECT_FALSE(report.skipped);
}

// ---- gradients as autograd gives them

struct SharedGradients : torch::nn::Module {
  SharedGradients() {
    a = register_parameter("a", torch::linspace(-1, 1, 6));
    b = register_parameter("b", torch::linspace(0, 1, 6));
  }
  // One tensor for both parameters in the first term, an expanded number in the second.
  LossTerms terms(const Batch& batch) const {
    return {.terms = {{((a + b) * batch.data).square().sum(), static_cast<double>(batch.size())},
                      {a.sum() * static_cast<double>(batch.size()), 2.0 * batch.size()}}};
  }
  torch::Tensor a, b;
};

TEST(LossTermsTest, SharedAndExpandedGradientsAreKeptApartToo) {
  const auto trained = [](int64_t k_steps) {
    const auto net = std::make_shared<SharedGradients>();
    DistributedOptimizer optimizer(
        std::make_unique<optim::SGD>(net, optim::SgdOptions{.lr = 0.1}),
        {.gradient_merge = true, .gradient_merge_configs = {.k_steps = static_cast<int>(k_steps)}},
        std::make_shared<comm::Communicator>());
    const auto whole = testing::small_batch(12, 3);
    for (int64_t i = 0; i < k_steps; ++i) {
      const auto part = whole.slice(12 * i / k_steps, 12 * (i + 1) / k_steps);
      optimizer.minimize([&]() -> Loss { return net->terms(part); });
    }
    return copies(net->parameters());
  };
  expect_close(trained(3), trained(1), 1e-5);
}

TEST(LossTermsTest, ZeroGradOfTorchDropsWhatIsKeptApart) {
  const auto trained = [](const std::function<void(torch::nn::Sequential&)>& clear) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), {},
                                   std::make_shared<comm::Communicator>());
    if (clear) {
      optimizer.backward(terms_of(net, marked_batch(7)));
      optimizer.backward(terms_of(net, marked_batch(8)));
      clear(net);
    }
    optimizer.backward(terms_of(net, marked_batch(0)));
    optimizer.backward(terms_of(net, marked_batch(1)));
    EXPECT_TRUE(optimizer.step().updated);
    return copies(net->parameters());
  };
  const auto expected = trained(nullptr);
  expect_equal(trained([](auto& net) { net->zero_grad(); }), expected);
  expect_equal(trained([](auto& net) { net->zero_grad(/*set_to_none=*/false); }), expected);
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
                   "the batch gives 2 weights, and the loss has 3 terms"));
  EXPECT_TRUE(says(error_message_of([&] {
                     optimizer.minimize(batch, [&](const TellingBatch& b) -> Loss {
                       auto terms = terms_of(net, b);
                       terms.terms[0].weight += 4;
                       return terms;
                     });
                   }),
                   "the batch gives weight 53 for term 0 of the loss"));
  EXPECT_EQ(optimizer.updates(), 0);
  optimizer.minimize(batch, [&](const TellingBatch& b) { return terms_of(net, b); });
  EXPECT_TRUE(says(error_message_of([&] {
                     optimizer.minimize([&]() -> Loss { return terms_of(net, batch).terms[0]; });
                   }),
                   "the loss has one term here, and 2 in other micro-batches"));
}

}  // namespace
}  // namespace fleet
