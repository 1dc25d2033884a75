// SPDX-License-Identifier: Apache-2.0
// The update alone: Fleet's fused passes beside a triad over memory, LibTorch's own optimizers,
// and LARS and LAMB written with LibTorch's ops.
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "fleet/applications/resnet.h"
#include "fleet/core/parallel_chunks.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/adam.h"
#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"
#include "fleet/optim/momentum.h"
#include "fleet/optim/passes/gradient_health.h"
#include "fleet/optim/sgd.h"

#include "bench/benches.h"
#include "bench/foreach_optimizers.h"

namespace fleet::bench {
namespace {

using Tensors = std::vector<torch::Tensor>;

/// Parameters of given shapes, and nothing else.
class Shapes : public torch::nn::Module {
 public:
  void add(const std::string& name, std::vector<int64_t> sizes) {
    std::string flat = name;
    std::replace(flat.begin(), flat.end(), '.', '_');
    register_parameter(flat, torch::randn(sizes) * 0.02);
  }
  void add_linear(const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  }
  void add_norm(const std::string& name, int64_t width) {
    add(name + ".norm_weight", {width});
    add(name + ".norm_bias", {width});
  }
};

std::shared_ptr<Shapes> bert_large_shapes() {
  auto shapes = std::make_shared<Shapes>();
  shapes->add("embeddings.word", {30522, 1024});
  shapes->add("embeddings.position", {512, 1024});
  shapes->add("embeddings.type", {2, 1024});
  shapes->add_norm("embeddings", 1024);
  for (int layer = 0; layer < 24; ++layer) {
    const auto name = format("layer{}.", layer);
    for (const char* part : {"query", "key", "value", "output"}) {
      shapes->add_linear(name + part, 1024, 1024);
    }
    shapes->add_norm(name + "attention", 1024);
    shapes->add_linear(name + "up", 4096, 1024);
    shapes->add_linear(name + "down", 1024, 4096);
    shapes->add_norm(name + "feed_forward", 1024);
  }
  shapes->add_linear("pooler", 1024, 1024);
  return shapes;
}

/// a = b + s * c, in blocks on all threads: 12 bytes per element.
class Triad {
 public:
  explicit Triad(int64_t n) : a_(torch::zeros({n})), b_(torch::ones({n})), c_(torch::ones({n})) {}

  void run() {
    parallel_ranges(a_.numel(), 1, [&](int64_t begin, int64_t end) {
      float* __restrict__ a = a_.mutable_data_ptr<float>();
      const float* __restrict__ b = b_.const_data_ptr<float>();
      const float* __restrict__ c = c_.const_data_ptr<float>();
      for (int64_t i = begin; i < end; ++i) a[i] = b[i] + 0.5f * c[i];
    });
  }
  double bytes() const { return 12.0 * static_cast<double>(a_.numel()); }

 private:
  torch::Tensor a_, b_, c_;
};

/// The same parameters and gradients as tensors of their own, for LibTorch's optimizers.
struct Loose {
  Tensors parameters;
  Tensors gradients;

  explicit Loose(const ParameterArena& arena) {
    for (const auto& span : arena.spans()) {
      parameters.push_back(span.value.clone().set_requires_grad(true));
      gradients.push_back(span.gradient.clone());
      parameters.back().mutable_grad() = gradients.back();
    }
  }
  Tensors detached() const {
    Tensors result;
    for (const auto& parameter : parameters) result.push_back(parameter.detach());
    return result;
  }
  Tensors zeros() const {
    Tensors result;
    for (const auto& parameter : parameters)
      result.push_back(torch::zeros_like(parameter.detach()));
    return result;
  }
  Tensors counters(double value) const {
    Tensors result;
    for (size_t i = 0; i < parameters.size(); ++i) result.push_back(torch::full({}, value));
    return result;
  }
};

struct Peer {
  std::string name;
  std::function<void()> step;
};

class OptimBench {
 public:
  OptimBench(std::string model_name, ModelHandle model, int rounds)
      : model_name_(std::move(model_name)), model_(std::move(model)), rounds_(rounds) {}

  // `bytes` per parameter: the least that the update must move (docs/strategies/lars.md).
  template <typename O>
  Timing run(const std::string& name, O optimizer, double bytes,
             const std::function<std::vector<Peer>(const Loose&)>& make_peers,
             const optim::StepInput& input = {}, const ArenaOptions& arena_options = {}) {
    ParameterArena arena(model_, arena_options);
    fill(arena);
    optimizer.bind(arena);
    if (!triad_) triad_ = std::make_unique<Triad>(arena.numel());
    const Loose loose(arena);
    const auto peers = make_peers(loose);
    std::vector<std::function<void()>> works = {[&] { optimizer.step({}, input); },
                                                [&] { triad_->run(); }};
    for (const auto& peer : peers) works.push_back(peer.step);
    const auto timings = alternate(rounds_, works);
    const double ms = timings[0].best() * 1e3;
    const double total = bytes * static_cast<double>(arena.numel());
    const double gbs = total / timings[0].best() * 1e-9;
    const double triad_gbs = triad_->bytes() / timings[1].best() * 1e-9;
    rows.push_back({format("{} {}: bandwidth", model_name_, name), gbs, "GB/s", "triad", triad_gbs,
                    gbs / triad_gbs, timings[0].spread()});
    rows.push_back({format("{} {}: time", model_name_, name), ms, "ms", "triad of as many elements",
                    timings[1].best() * 1e3, timings[1].best() / timings[0].best(),
                    format("triad {}", timings[1].spread())});
    for (size_t i = 0; i < peers.size(); ++i) {
      rows.push_back({format("{} {}", model_name_, name), ms, "ms", peers[i].name,
                      timings[i + 2].best() * 1e3, timings[i + 2].best() / timings[0].best(),
                      format("peer {}", timings[i + 2].spread())});
    }
    return timings[0];
  }

  // LARS beside Momentum, taken in turn.
  void lars_beside_momentum() {
    ParameterArena arena_of_momentum(model_);  // each its own
    ParameterArena arena(model_);
    fill(arena_of_momentum);
    fill(arena);
    optim::Momentum momentum(model_, {.lr = 1e-4});
    optim::Lars lars(model_, {.lr = 1e-4});
    momentum.bind(arena_of_momentum);
    lars.bind(arena);
    const auto timings = alternate(2 * rounds_, {[&] { lars.step(); }, [&] { momentum.step(); }});
    rows.push_back({format("{} lars", model_name_), timings[0].best() * 1e3, "ms",
                    "fleet's momentum", timings[1].best() * 1e3,
                    timings[1].best() / timings[0].best(),
                    format("lars {}; momentum {}", timings[0].spread(), timings[1].spread())});
  }

  // The finite check, which takes the norm in the same pass: alone, and what it adds to an update.
  void health() {
    ParameterArena arena(model_);
    fill(arena);
    optim::AdamW optimizer(model_, {.lr = 1e-4});
    optimizer.bind(arena);
    const std::vector<bool> all(arena.spans().size(), true);
    const auto& blocks = optimizer.choose_blocks(all);
    Tensors gradients;
    for (const auto& span : arena.spans()) gradients.push_back(span.gradient.clone());
    const auto found = torch::zeros({1});
    const auto inverse = torch::ones({1});
    double norm = 0;
    const auto timings = alternate(
        rounds_,
        {[&] { norm += optim::gradient_health(arena, blocks).norm; },
         [&] {
           torch::NoGradGuard no_grad;
           at::_amp_foreach_non_finite_check_and_unscale_(gradients, found.zero_(), inverse);
           norm += torch::stack(at::_foreach_norm(gradients)).norm().item<double>();
         },
         [&] {
           const auto health = optim::gradient_health(arena, blocks);
           optimizer.step(all, {.gradient_norm = health.norm, .block_sums = health.block_sums});
         },
         [&] { optimizer.step(all); }});
    const auto ms = [&](size_t way) { return timings[way].best() * 1e3; };
    rows.push_back({format("{} finite check, unscale and norm", model_name_), ms(0), "ms",
                    "LibTorch's _foreach ops", ms(1), ms(1) / ms(0), timings[0].spread()});
    rows.push_back({format("{} adamw after a finite check", model_name_), ms(2), "ms",
                    "adamw alone", ms(3), ms(3) / ms(2),
                    format("{}; the check alone is {:.1f} % of adamw; {} | peer {}",
                           Slowdown(timings[2], timings[3]).text(), 100 * ms(0) / ms(3),
                           timings[2].spread(), timings[3].spread())});
  }

  std::vector<Row> rows;

 private:
  static void fill(ParameterArena& arena) {
    const torch::NoGradGuard no_grad;
    for (const auto& group : arena.groups()) group.gradients.normal_(0, 1e-3);
  }

  std::string model_name_;
  ModelHandle model_;
  int rounds_;
  std::unique_ptr<Triad> triad_;
};

std::vector<Peer> sgd_peers(const Loose& loose, double momentum) {
  auto theirs = std::make_shared<torch::optim::SGD>(
      loose.parameters, torch::optim::SGDOptions(1e-4).momentum(momentum));
  auto velocities = std::make_shared<Tensors>(loose.zeros());
  return {{"LibTorch, op by op", [theirs] { theirs->step(); }},
          {"LibTorch, fused", [=, values = loose.detached(), gradients = loose.gradients] {
             at::_fused_sgd_(values, gradients, momentum != 0 ? *velocities : Tensors{}, 0,
                             momentum, 1e-4, 0, false, false, false);
           }}};
}

std::vector<Peer> adam_peers(const Loose& loose) {
  auto theirs =
      std::make_shared<torch::optim::AdamW>(loose.parameters, torch::optim::AdamWOptions(1e-4));
  auto m = std::make_shared<Tensors>(loose.zeros());
  auto v = std::make_shared<Tensors>(loose.zeros());
  auto steps = std::make_shared<Tensors>(loose.counters(3));
  return {{"LibTorch, op by op", [theirs] { theirs->step(); }},
          {"LibTorch, fused", [=, values = loose.detached(), gradients = loose.gradients] {
             at::_fused_adamw_(values, gradients, *m, *v, {}, *steps, 1e-4, 0.9, 0.999, 0.01, 1e-8,
                               false, false);
           }}};
}

// LibTorch's fused op alone, and with the same work as Fleet's row: unscaled by the fused op,
// clipped, and a copy in bf16.
std::vector<Peer> mixed_adam_peers(const Loose& loose) {
  auto m = std::make_shared<Tensors>(loose.zeros());
  auto v = std::make_shared<Tensors>(loose.zeros());
  auto steps = std::make_shared<Tensors>(loose.counters(3));
  auto low = std::make_shared<Tensors>();
  for (const auto& value : loose.detached()) low->push_back(value.to(torch::kBFloat16));
  const auto step = [=, values = loose.detached(),
                     gradients = loose.gradients](const std::optional<torch::Tensor>& scale) {
    at::_fused_adamw_(values, gradients, *m, *v, {}, *steps, 1e-4, 0.9, 0.999, 0.01, 1e-8, false,
                      false, scale);
  };
  return {{"LibTorch, fused", [=] { step({}); }},
          {"LibTorch, fused, the same work",
           [=, values = loose.detached(), gradients = loose.gradients] {
             const torch::NoGradGuard no_grad;
             at::_foreach_mul_(gradients, 0.999999);  // clips: the norm is known
             step(torch::ones({1}));
             at::_foreach_copy_(*low, values);
           }}};
}

// Whether a comma-separated list in the environment names it; all, where there is none.
bool is_chosen(const char* variable, const std::string& name) {
  const char* only = std::getenv(variable);
  return !only || c10::str(',', only, ',').find(c10::str(',', name, ',')) != std::string::npos;
}

std::vector<Row> bench_model(const std::string& name,
                             const std::function<ModelHandle()>& make_model, int rounds) {
  if (!is_chosen("FLEET_BENCH_NETS", name)) return {};
  const auto model = make_model();
  OptimBench bench(name, model, rounds);
  const auto chosen = [](const char* row) { return is_chosen("FLEET_BENCH_ROWS", row); };
  if (chosen("sgd")) {
    bench.run("sgd", optim::SGD(model, {.lr = 1e-4}), 12,
              [](const Loose& loose) { return sgd_peers(loose, 0); });
  }
  if (chosen("momentum")) {
    bench.run("momentum", optim::Momentum(model, {.lr = 1e-4}), 20,
              [](const Loose& loose) { return sgd_peers(loose, 0.9); });
  }
  if (chosen("adamw")) bench.run("adamw", optim::AdamW(model, {.lr = 1e-4}), 28, adam_peers);
  if (chosen("lars")) {
    bench.run("lars", optim::Lars(model, {.lr = 1e-4}), 28, [](const Loose& loose) {
      return std::vector<Peer>{
          {"LARS of LibTorch's ops", foreach_lars(loose.detached(), loose.gradients)}};
    });
    bench.lars_beside_momentum();
  }
  if (chosen("lamb")) {
    bench.run("lamb", optim::Lamb(model, {.lr = 1e-4}), 40, [](const Loose& loose) {
      return std::vector<Peer>{
          {"LAMB of LibTorch's _foreach ops", foreach_lamb(loose.detached(), loose.gradients)}};
    });
  }
  if (chosen("health")) bench.health();
  // Unscaled, clipped and rounded to bf16 in the same pass; the norm comes with the finite check.
  // Last, for it leaves the model in bf16.
  if (chosen("adamw-bf16")) {
    bench.run("adamw + unscale + clip + bf16 copy",
              optim::AdamW(model, {.lr = 1e-4, .max_grad_norm = 1}), 30, mixed_adam_peers,
              {.gradient_scale = 1.0 / 32768, .gradient_norm = 1e6},
              {.working_dtype = torch::kBFloat16});
  }
  return bench.rows;
}

}  // namespace

std::vector<Row> bench_optim() {
  torch::manual_seed(1);
  auto rows = bench_model(
      "resnet50", [] { return applications::Resnet(applications::ResnetOptions{}); }, 25);
  const auto bert = bench_model(
      "bert-large", [] { return bert_large_shapes(); }, 7);
  rows.insert(rows.end(), bert.begin(), bert.end());
  return rows;
}

}  // namespace fleet::bench
