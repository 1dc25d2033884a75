// SPDX-License-Identifier: Apache-2.0
// Every optimizer, step by step, against scalar loops in double precision.
#include <cmath>
#include <map>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "fleet/io/weights.h"
#include "fleet/optim/adam.h"
#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"
#include "fleet/optim/momentum.h"
#include "fleet/optim/sgd.h"

#include "tests/data/temporary_folder.h"

namespace fleet::optim {
namespace {

using Numbers = std::vector<double>;

class Net : public torch::nn::Module {
 public:
  explicit Net(torch::ScalarType dtype = torch::kFloat, int64_t scale = 1) {
    auto generator = at::detail::createCPUGenerator(7);
    const auto add = [&](const char* name, std::vector<int64_t> sizes, double deviation) {
      register_parameter(name, (torch::randn(sizes, generator) * deviation).to(dtype));
    };
    add("first_weight", {13, 7 * scale}, 0.5);
    add("first_bias", {13}, 0.5);
    add("filter_weight", {4, 3, 3, 3 * scale}, 0.1);
    add("zero_weight", {5, 9}, 0);
    add("head_weight", {6, 4 * scale}, 2);
    add("head_bias", {6}, 0);
  }
};

// One tensor of the oracle; `update` is the rule under test.
struct Cell {
  Numbers w, a, b;
  int updates = 0;
  double lr_scale = 1;
  double decay = 0;
  bool adapt = false;
};

double norm(const Numbers& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// `step` counts the updates of this tensor, from 1.
using Rule = std::function<void(Cell& cell, Numbers g, double lr, int step)>;
using Setting = std::function<void(const std::string& name, int64_t dim, Cell& cell)>;

Numbers numbers(const torch::Tensor& tensor) {
  const auto flat = tensor.detach().to(torch::kDouble).contiguous().flatten();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

torch::Tensor flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> parts;
  for (const auto& tensor : tensors) parts.push_back(tensor.detach().flatten());
  return torch::cat(parts);
}

struct Trial {
  torch::ScalarType dtype = torch::kFloat;
  double max_grad_norm = 0;
  double gradient_scale = 1;
  std::vector<std::string> zero_gradients = {};  // in steps 2 and 5
  bool pausing = false;                          // parameters without a gradient now and then
};

// With `pausing`: the last two are first used late, the others miss every third step, in turn.
bool is_used(const Trial& trial, size_t span, int step) {
  if (!trial.pausing) return true;
  return span >= 4 ? step > 5 : (static_cast<size_t>(step) + span) % 3 != 0;
}

// Steps the optimizer and the oracle side by side, with a changing rate; gradients come from a
// linear loss, so that they are exactly what the oracle is given.
void expect_like_oracle(const std::function<std::unique_ptr<Optimizer>(Net&)>& make,
                        const Setting& setting, const Rule& rule, const Trial& trial = {}) {
  auto net = std::make_shared<Net>(trial.dtype);
  const auto optimizer = make(*net);
  std::map<std::string, Cell> cells;
  for (const auto& item : net->named_parameters()) {
    auto& cell = cells[item.key()];
    cell.w = numbers(item.value());
    cell.a.assign(cell.w.size(), 0);
    cell.b.assign(cell.w.size(), 0);
    setting(item.key(), item.value().dim(), cell);
  }
  ParameterArena arena(*net);
  optimizer->bind(arena);
  auto generator = at::detail::createCPUGenerator(3);
  for (int step = 1; step <= 8; ++step) {
    const double lr = 0.02 * (1 + step % 3);
    optimizer->set_lr(lr);
    torch::Tensor loss = torch::zeros({}, torch::kDouble);
    std::map<std::string, Numbers> gradients;
    double square = 0;
    std::vector<bool> used;
    for (const auto& item : net->named_parameters()) {
      used.push_back(is_used(trial, used.size(), step));
      if (!used.back()) continue;
      auto g = torch::randn(item.value().sizes(), generator).to(trial.dtype);
      const auto& zeros = trial.zero_gradients;
      if (step % 3 == 2 && std::count(zeros.begin(), zeros.end(), item.key())) g.zero_();
      loss = loss + (item.value() * g).sum();
      gradients[item.key()] = numbers(g);
      for (auto& value : gradients[item.key()]) value *= trial.gradient_scale;
      square += std::pow(norm(gradients[item.key()]), 2);
    }
    arena.begin_window();
    loss.backward();
    arena.end_window();
    optimizer->step(used, {.gradient_scale = trial.gradient_scale});
    const double clip = trial.max_grad_norm > 0
                            ? std::min(1.0, trial.max_grad_norm / (std::sqrt(square) + 1e-6))
                            : 1;
    for (auto& [name, cell] : cells) {
      if (gradients.contains(name)) {
        auto g = gradients[name];
        for (auto& value : g) value *= clip;
        rule(cell, g, lr * cell.lr_scale, ++cell.updates);
      }
      const auto ours = numbers(net->named_parameters()[name]);
      const double tolerance = trial.dtype == torch::kDouble ? 1e-11 : 2e-5;
      for (size_t i = 0; i < ours.size(); ++i) {
        ASSERT_NEAR(ours[i], cell.w[i], tolerance * std::max(1.0, std::abs(cell.w[i])))
            << optimizer->name() << " step " << step << " " << name << "[" << i << "]";
      }
    }
  }
}

const std::vector<Trial> kTrials = {
    {},
    {.dtype = torch::kDouble},
    {.max_grad_norm = 3},
    {.max_grad_norm = 3, .gradient_scale = 1.0 / 64},
    {.gradient_scale = 0.25, .zero_gradients = {"first_weight", "head_bias", "zero_weight"}},
    {.dtype = torch::kDouble, .max_grad_norm = 2, .zero_gradients = {"first_weight"}},
    {.pausing = true},
    {.dtype = torch::kDouble, .max_grad_norm = 3, .pausing = true},
};

TEST(OracleTest, Sgd) {
  for (const auto& trial : kTrials) {
    for (const double decay : {0.0, 0.1}) {
      expect_like_oracle(
          [&](Net& net) {
            return std::make_unique<SGD>(
                net, SgdOptions{.weight_decay = decay, .max_grad_norm = trial.max_grad_norm});
          },
          [&](const auto&, int64_t, Cell& cell) { cell.decay = decay; },
          [](Cell& cell, const Numbers& g, double lr, int) {
            for (size_t i = 0; i < g.size(); ++i) cell.w[i] -= lr * (g[i] + cell.decay * cell.w[i]);
          },
          trial);
    }
  }
}

TEST(OracleTest, MomentumWithGroupsByName) {
  for (const auto& trial : kTrials) {
    for (const bool nesterov : {false, true}) {
      expect_like_oracle(
          [&](Net& net) {
            return std::make_unique<Momentum>(
                net, MomentumOptions{.momentum = 0.8,
                                     .weight_decay = 0.1,
                                     .use_nesterov = nesterov,
                                     .max_grad_norm = trial.max_grad_norm,
                                     .groups = {{.names = {"_bias"}, .weight_decay = 0.0},
                                                {.names = {"head", "filter"}, .lr_scale = 3}}});
          },
          [&](const std::string& name, int64_t, Cell& cell) {
            const bool bias = name.find("bias") != std::string::npos;
            cell.decay = bias ? 0 : 0.1;
            cell.lr_scale = name == "head_weight" || name == "filter_weight" ? 3 : 1;
          },
          [&](Cell& cell, const Numbers& g, double lr, int) {
            for (size_t i = 0; i < g.size(); ++i) {
              const double d = g[i] + cell.decay * cell.w[i];
              cell.a[i] = 0.8 * cell.a[i] + d;
              cell.w[i] -= lr * (nesterov ? d + 0.8 * cell.a[i] : cell.a[i]);
            }
          },
          trial);
    }
  }
}

TEST(OracleTest, AdamAndAdamW) {
  for (const auto& trial : kTrials) {
    for (const bool decoupled : {false, true}) {
      expect_like_oracle(
          [&](Net& net) -> std::unique_ptr<Optimizer> {
            if (decoupled) {
              return std::make_unique<AdamW>(net,
                                             AdamWOptions{.beta1 = 0.8,
                                                          .beta2 = 0.99,
                                                          .weight_decay = 0.1,
                                                          .max_grad_norm = trial.max_grad_norm});
            }
            return std::make_unique<Adam>(net, AdamOptions{.beta1 = 0.8,
                                                           .beta2 = 0.99,
                                                           .weight_decay = 0.1,
                                                           .max_grad_norm = trial.max_grad_norm});
          },
          [](const auto&, int64_t, Cell&) {},
          [&](Cell& cell, const Numbers& g, double lr, int step) {
            for (size_t i = 0; i < g.size(); ++i) {
              double d = g[i];
              if (decoupled) {
                cell.w[i] *= 1 - lr * 0.1;
              } else {
                d += 0.1 * cell.w[i];
              }
              cell.a[i] = 0.8 * cell.a[i] + 0.2 * d;
              cell.b[i] = 0.99 * cell.b[i] + 0.01 * d * d;
              const double m = cell.a[i] / (1 - std::pow(0.8, step));
              const double v = cell.b[i] / (1 - std::pow(0.99, step));
              cell.w[i] -= lr * m / (std::sqrt(v) + 1e-8);
            }
          },
          trial);
    }
  }
}

Rule lars_oracle(const LarsOptions& o) {
  return [o](Cell& cell, const Numbers& g, double lr, int) {
    double ratio = 1;
    double decay = cell.decay;
    if (cell.adapt) {
      const double w_norm = norm(cell.w);
      const double g_norm = norm(g);
      if (w_norm > 0 && g_norm > 0) {
        ratio = o.lars_coeff * w_norm / (g_norm + cell.decay * w_norm + o.epsilon);
        if (o.rule.trust_clip) ratio = std::min(ratio / lr, 1.0);
      } else if (!o.rule.decay_at_zero_norm) {
        decay = 0;
      }
    }
    for (size_t i = 0; i < g.size(); ++i) {
      const double d = ratio * (g[i] + decay * cell.w[i]);
      if (o.rule.lr_in_velocity) {
        cell.a[i] = o.momentum * cell.a[i] + lr * d;
        cell.w[i] -= o.use_nesterov ? lr * d + o.momentum * cell.a[i] : cell.a[i];
      } else {
        cell.a[i] = o.momentum * cell.a[i] + d;
        cell.w[i] -= lr * (o.use_nesterov ? d + o.momentum * cell.a[i] : cell.a[i]);
      }
    }
  };
}

TEST(OracleTest, LarsInEveryRule) {
  for (const auto& name : lars_rule_names()) {
    for (const auto& trial : kTrials) {
      for (const double decay : {0.0, 0.05}) {
        for (const bool nesterov : {false, true}) {
          LarsOptions options{.momentum = 0.9,
                              .lars_coeff = 0.5,
                              .lars_weight_decay = decay,
                              .epsilon = nesterov ? 1e-3 : 0,
                              .use_nesterov = nesterov,
                              .exclude_from_weight_decay = {"filter"},
                              .max_grad_norm = trial.max_grad_norm,
                              .rule = lars_rule(name)};
          SCOPED_TRACE(name);
          expect_like_oracle([&](Net& net) { return std::make_unique<Lars>(net, options); },
                             [&](const std::string& parameter, int64_t dim, Cell& cell) {
                               const bool out = (options.rule.exclude_bias_and_norm && dim <= 1) ||
                                                parameter == "filter_weight";
                               cell.decay = out ? 0 : decay;
                               cell.adapt = cell.decay != 0 || options.rule.adapt_without_decay;
                             },
                             lars_oracle(options), trial);
        }
      }
    }
  }
}

Rule lamb_oracle(const LambOptions& o) {
  return [o](Cell& cell, const Numbers& g, double lr, int step) {
    const bool in_moments = o.rule.bias_correction == BiasCorrection::kMoments;
    const double first = 1 - std::pow(o.beta1, step);
    const double second = 1 - std::pow(o.beta2, step);
    Numbers u(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      cell.a[i] = o.beta1 * cell.a[i] + (1 - o.beta1) * g[i];
      cell.b[i] = o.beta2 * cell.b[i] + (1 - o.beta2) * g[i] * g[i];
      const double m = in_moments ? cell.a[i] / first : cell.a[i];
      const double v = in_moments ? cell.b[i] / second : cell.b[i];
      u[i] = m / (std::sqrt(v) + o.epsilon) + cell.decay * cell.w[i];
    }
    double ratio = 1;
    if (cell.adapt && norm(cell.w) > 0 && norm(u) > 0) {
      ratio = std::max(norm(cell.w) / norm(u), o.rule.min_ratio);
      if (o.rule.max_ratio > 0) ratio = std::min(ratio, o.rule.max_ratio);
    }
    if (o.rule.bias_correction == BiasCorrection::kStep) ratio *= std::sqrt(second) / first;
    for (size_t i = 0; i < g.size(); ++i) cell.w[i] -= lr * ratio * u[i];
  };
}

TEST(OracleTest, LambInEveryRule) {
  for (const auto& name : lamb_rule_names()) {
    for (const auto& trial : kTrials) {
      for (const double decay : {0.0, 0.05}) {
        LambOptions options{.beta1 = 0.8,
                            .beta2 = 0.99,
                            .lamb_weight_decay = decay,
                            .exclude_from_weight_decay = {"filter"},
                            .max_grad_norm = trial.max_grad_norm,
                            .rule = lamb_rule(name)};
        SCOPED_TRACE(name);
        expect_like_oracle([&](Net& net) { return std::make_unique<Lamb>(net, options); },
                           [&](const std::string& parameter, int64_t dim, Cell& cell) {
                             const bool out = (options.rule.exclude_bias_and_norm && dim <= 1) ||
                                              parameter == "filter_weight";
                             cell.decay = out ? 0 : decay;
                             cell.adapt = cell.decay != 0 || options.rule.adapt_without_decay;
                           },
                           lamb_oracle(options), trial);
      }
    }
  }
}

// Norms are those of the parameters as they are, whoever wrote them and however: an optimizer that
// is new in every step has nothing else to go by.
TEST(OracleTest, LarsNoticesParametersThatOthersWrote) {
  const TemporaryFolder folder;
  const auto train = [&](bool fresh, int way) {
    auto net = std::make_shared<Net>(torch::kFloat, 300);
    ParameterArena arena(*net);
    auto lars = std::make_unique<Lars>(*net, LarsOptions{.lr = 1, .momentum = 0});
    lars->bind(arena);
    arena.groups()[0].gradients.copy_(
        torch::randn({arena.groups()[0].gradients.numel()}, at::detail::createCPUGenerator(5)));
    for (int step = 0; step < 4; ++step) {
      if (fresh) {
        lars = std::make_unique<Lars>(*net, LarsOptions{.lr = 1, .momentum = 0});
        lars->bind(arena);
      }
      std::vector<bool> used(arena.spans().size(), true);
      const torch::NoGradGuard no_grad;
      auto first = net->parameters()[0];
      if (way == 1) first.view(-1)[5000] = 100;
      if (way == 2) arena.groups()[0].values.mul_(2);
      if (way == 3) arena.spans()[0].value.view(-1)[5000] = 100;
      if (way == 4) first.data().clamp_(-0.1, 0.1);
      if (way == 5) {
        auto* data = first.data_ptr<float>();
        for (int64_t i = 300; i < first.numel(); ++i) data[i] += 1;
      }
      if (way == 6) {
        auto weights = first.detach().clone();
        weights.view(-1)[5000] = 100;
        write_safetensors(folder.path() / "weights", {{"first_weight", weights}});
        load_weights(*net, folder.path() / "weights", {.strict = false});
      }
      if (way == 8) first.data_ptr<float>()[4999] += 100;  // one element, and no version counts it
      if (way == 7) used[static_cast<size_t>(step) % 2] = false;
      lars->step(used);
    }
    return flat(net->parameters());
  };
  for (int way = 0; way <= 8; ++way) {
    EXPECT_TRUE(torch::equal(train(false, way), train(true, way))) << way;
  }
}

// Spans of several blocks, cut at other places for every number of threads.
TEST(OracleTest, ResultsDoNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  const auto train = [](const std::function<std::unique_ptr<Optimizer>(Net&)>& make, int threads,
                        int64_t scale) {
    at::set_num_threads(threads);
    auto net = std::make_shared<Net>(torch::kFloat, scale);
    const auto optimizer = make(*net);
    ParameterArena arena(*net);
    optimizer->bind(arena);
    for (const auto& group : arena.groups()) {
      group.gradients.copy_(
          torch::randn({group.gradients.numel()}, at::detail::createCPUGenerator(5)));
    }
    for (int step = 0; step < 3; ++step) optimizer->step();
    return flat(net->parameters());
  };
  const std::vector<std::function<std::unique_ptr<Optimizer>(Net&)>> makers = {
      [](Net& net) { return std::make_unique<Momentum>(net, MomentumOptions{.max_grad_norm = 1}); },
      [](Net& net) { return std::make_unique<Adam>(net); },
      [](Net& net) { return std::make_unique<Lars>(net); },
      [](Net& net) { return std::make_unique<Lamb>(net, LambOptions{.max_grad_norm = 1}); },
  };
  for (const auto& make : makers) {
    // The small one has fewer blocks than threads.
    for (const int64_t scale : {3000, 300}) {
      const auto one = train(make, 1, scale);
      for (const int threads : {2, 3, 5, 16, 40}) {
        EXPECT_TRUE(torch::equal(train(make, threads, scale), one))
            << threads << " threads, scale " << scale;
      }
    }
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace fleet::optim
