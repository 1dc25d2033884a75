// SPDX-License-Identifier: Apache-2.0
// The fused layers beside the same layers of LibTorch's ops, taken in turn in one process, forward
// and backward through autograd on both sides. Both have freed pages kept (fleet::init).
#include <cstdlib>
#include <string_view>
#include <unordered_set>

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/types.h>

#include "fleet/core/parallel_chunks.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/ops/add_norm.h"
#include "fleet/ops/bias_gelu.h"
#include "fleet/ops/cross_entropy.h"
#include "fleet/ops/dropout.h"
#include "fleet/ops/fast_ops.h"
#include "fleet/ops/gelu_linear.h"
#include "fleet/ops/kernels/layer_kernels.h"
#include "fleet/ops/linear_cross_entropy.h"
#include "fleet/ops/packed_linear.h"
#include "fleet/ops/random_scope.h"
#include "fleet/ops/tiled_attention.h"
#include "fleet/precision/low_precision_speed.h"

#include "bench/benches.h"

namespace fleet::bench {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Layer = std::function<Tensor()>;

constexpr int kRounds = 9;

torch::TensorOptions of_type(torch::ScalarType type) { return torch::TensorOptions(type); }

Tensor numbers(c10::IntArrayRef sizes, torch::ScalarType type, bool learns = true) {
  return torch::randn(sizes).to(type).set_requires_grad(learns);
}

const char* name_of(torch::ScalarType type) { return type == torch::kFloat ? "fp32" : "bf16"; }

/// Bytes of what autograd saves that is not in `known`: each storage once.
class SavedBytes final : public compat::SaveObserver {
 public:
  explicit SavedBytes(const Tensors& known) {
    for (const auto& x : known) seen_.insert(x.storage().unsafeGetStorageImpl());
  }
  std::unique_ptr<compat::SavedTensor> save(const Tensor& x) override {
    if (seen_.insert(x.storage().unsafeGetStorageImpl()).second) bytes_ += x.storage().nbytes();
    held_.push_back(x);
    return std::make_unique<Unusable>();
  }
  double megabytes() const { return static_cast<double>(bytes_) * 1e-6; }

 private:
  struct Unusable final : compat::SavedTensor {
    Tensor unpack() override { return {}; }
  };
  std::unordered_set<const c10::StorageImpl*> seen_;
  Tensors held_;  // so that no storage's address is used twice
  size_t bytes_ = 0;
};

class KernelBench {
 public:
  struct Peer {
    std::string name;
    Layer layer;
  };

  void add(const std::string& name, const std::vector<Timing>& timings, const std::string& peer,
           size_t at = 1) {
    rows.push_back({name, timings[0].best() * 1e3, "ms", peer, timings[at].best() * 1e3,
                    timings[at].best() / timings[0].best(),
                    format("{}; peer {}", timings[0].spread(), timings[at].spread())});
  }

  void forward(const std::string& name, const Layer& layer, const std::vector<Peer>& peers) {
    const torch::NoGradGuard no_grad;
    std::vector<std::function<void()>> works = {[&] { layer(); }};
    for (const auto& peer : peers) works.emplace_back([&peer] { peer.layer(); });
    const auto timings = alternate(kRounds, works);
    for (size_t i = 0; i < peers.size(); ++i) add(name + " forward", timings, peers[i].name, i + 1);
  }

  /// Backward alone, of graphs that stay.
  void backward(const std::string& name, const Layer& layer, const std::vector<Peer>& peers,
                const Tensors& leaves) {
    std::vector<std::function<void()>> works;
    const auto work = [&](const Layer& forward) {
      const auto y = forward();
      const auto dy = torch::ones_like(y);
      works.emplace_back(
          [y, dy, &leaves] { torch::autograd::grad({y}, leaves, {dy}, /*retain_graph=*/true); });
    };
    work(layer);
    for (const auto& peer : peers) work(peer.layer);
    const auto timings = alternate(kRounds, works);
    for (size_t i = 0; i < peers.size(); ++i) {
      add(name + " backward", timings, peers[i].name, i + 1);
    }
  }

  void both(const std::string& name, const Layer& layer, const std::vector<Peer>& peers,
            const Tensors& leaves, int rounds = kRounds) {
    std::vector<std::function<void()>> works;
    const auto work = [&](const Layer& forward) {
      works.emplace_back([&] {
        const auto y = forward();
        torch::autograd::grad({y}, leaves, {torch::ones_like(y)});
      });
    };
    work(layer);
    for (const auto& peer : peers) work(peer.layer);
    const auto timings = alternate(rounds, works);
    for (size_t i = 0; i < peers.size(); ++i) {
      add(name + " forward + backward", timings, peers[i].name, i + 1);
    }
  }

  void kept(const std::string& name, const Layer& layer, const std::vector<Peer>& peers,
            const Tensors& leaves) {
    const auto bytes = [&](const Layer& forward) {
      SavedBytes saved(leaves);
      const compat::ObserverScope observer(nullptr, &saved);
      const auto y = forward();
      return saved.megabytes();
    };
    const double own = bytes(layer);
    for (const auto& peer : peers) {
      const double theirs = bytes(peer.layer);
      rows.push_back({name + " kept for backward", own, "MB", peer.name, theirs, theirs / own, ""});
    }
  }

  std::vector<Row> rows;
};

void bench_dropout(KernelBench& bench, torch::ScalarType type) {
  const auto x = numbers({8, 512, 1024}, type);
  const auto copy = torch::empty_like(x.detach());
  const auto name = format("dropout 0.1, 4096 x 1024 {}", name_of(type));
  const KernelBench::Peer theirs{"LibTorch's dropout",
                                 [&] { return torch::dropout(x, 0.1, true); }};
  bench.forward(name, [&] { return ops::dropout(x, 0.1); },
                {theirs, {"a copy", [&] { return x.clone(); }}});
  bench.backward(name, [&] { return ops::dropout(x, 0.1); }, {theirs}, {x});
}

void bench_add_norm(KernelBench& bench, torch::ScalarType type) {
  const auto x = numbers({8, 512, 1024}, type), residual = numbers({8, 512, 1024}, type);
  const auto weight = torch::ones({1024}).set_requires_grad(true);
  const auto bias = torch::zeros({1024}).set_requires_grad(true);
  const Tensors leaves = {x, residual, weight, bias};
  for (const double p : {0.1, 0.0}) {
    const auto name = format("dropout {} + residual + LayerNorm, 4096 x 1024 {}", p, name_of(type));
    const Layer own = [&, p] { return ops::add_norm(x, residual, weight, bias, {.dropout = p}); };
    const KernelBench::Peer theirs{
        "LibTorch's ops", [&, p] {
          return torch::layer_norm(torch::dropout(x, p, p > 0) + residual, {1024}, weight, bias);
        }};
    bench.forward(name, own, {theirs});
    bench.backward(name, own, {theirs}, leaves);
  }
}

void bench_gelu(KernelBench& bench, torch::ScalarType type) {
  const auto x = numbers({8, 512, 4096}, type);
  const auto bias = torch::zeros({4096}, of_type(type)).set_requires_grad(true);
  for (const bool tanh : {false, true}) {
    const auto name =
        format("bias + GELU ({}), 4096 x 4096 {}", tanh ? "tanh" : "erf", name_of(type));
    const Layer own = [&, tanh] { return ops::bias_gelu(x, bias, {.tanh = tanh}); };
    const KernelBench::Peer theirs{
        "LibTorch's ops", [&, tanh] { return torch::gelu(x + bias, tanh ? "tanh" : "none"); }};
    bench.forward(name, own, {theirs});
    bench.backward(name, own, {theirs}, {x, bias});
  }
}

void bench_attention(KernelBench& bench, torch::ScalarType type, int64_t samples, int64_t length,
                     bool causal) {
  constexpr int64_t kHeads = 16, kWidth = 64;
  const std::vector<int64_t> sizes = {samples, length, kHeads, kWidth};
  const auto q = numbers(sizes, type), k = numbers(sizes, type), v = numbers(sizes, type);
  const auto heads_first = [](const Tensor& x) { return x.transpose(1, 2); };
  const auto hidden = torch::ones({length, length}).tril().eq(0);
  std::vector<Timing> own_timings;
  for (const double p : {0.1, 0.0}) {
    const auto name = format("attention {} x {} tokens, 16 heads of 64, dropout {}{} {}", samples,
                             length, p, causal ? ", causal" : "", name_of(type));
    const Layer own = [&, p] {
      return ops::tiled_attention(q, k, v, {.causal = causal, .dropout = p});
    };
    const KernelBench::Peer manual{
        "two products and a softmax", [&, p] {
          auto scores = torch::matmul(heads_first(q) * 0.125, heads_first(k).transpose(-2, -1));
          if (causal) scores = scores.masked_fill(hidden, -3e38);
          const auto weights = torch::dropout(torch::softmax(scores, -1), p, p > 0);
          return torch::matmul(weights, heads_first(v)).transpose(1, 2).contiguous();
        }};
    const KernelBench::Peer fused{"LibTorch's scaled_dot_product_attention", [&, p] {
                                    return torch::scaled_dot_product_attention(
                                               heads_first(q), heads_first(k), heads_first(v), {},
                                               p, causal)
                                        .transpose(1, 2)
                                        .contiguous();
                                  }};
    bench.both(name, own, {manual, fused}, {q, k, v});
    bench.kept(name, own, {manual, fused}, {q, k, v});
  }
  // Beside itself without dropout.
  const auto run = [&](double p) {
    const auto y = ops::tiled_attention(q, k, v, {.causal = causal, .dropout = p});
    torch::autograd::grad({y}, {q, k, v}, {torch::ones_like(y)});
  };
  const auto timings = alternate(kRounds, {[&] { run(0.1); }, [&] { run(0); }});
  bench.add(format("attention {} x {} tokens: dropout 0.1{} {}", samples, length,
                   causal ? ", causal" : "", name_of(type)),
            timings, "the same without dropout");
}

/// A linear layer in float with the products of Fleet and of LibTorch; the three of an update.
void bench_products(KernelBench& bench) {
  for (const auto& [in, out] :
       {std::pair<int64_t, int64_t>{1024, 1024}, {1024, 4096}, {4096, 1024}}) {
    const auto x = numbers({2048, in}, torch::kFloat), weight = numbers({out, in}, torch::kFloat);
    const auto bias = numbers({out}, torch::kFloat);
    bench.both(
        format("linear layer, 2048 x {} to {} fp32", in, out),
        [&] { return ops::packed_linear(x, weight, bias); },
        {{"LibTorch's linear", [&] { return torch::linear(x, weight, bias); }}}, {x, weight, bias},
        5);
  }
}

void bench_cross_entropy(KernelBench& bench, torch::ScalarType type) {
  constexpr int64_t kRows = 614, kHidden = 1024, kVocabulary = 30522;
  const auto x = numbers({kRows, kHidden}, type);
  const auto weight = (torch::randn({kVocabulary, kHidden}) * 0.02).to(type).requires_grad_();
  const auto bias = torch::zeros({kVocabulary}, of_type(type)).requires_grad_();
  const auto labels = torch::randint(kVocabulary, {kRows}, torch::kLong);
  const auto name = format("masked-LM head, 614 rows of 30522 {}", name_of(type));
  const Layer own = [&] { return ops::linear_cross_entropy(x, weight, bias, labels); };
  const KernelBench::Peer theirs{"LibTorch's linear, cross_entropy", [&] {
                                   return torch::cross_entropy_loss(torch::linear(x, weight, bias),
                                                                    labels, {}, at::Reduction::Sum);
                                 }};
  bench.both(name, own, {theirs}, {x, weight, bias}, 5);
  bench.kept(name, own, {theirs}, {x, weight, bias});
  // Without the products: loss and gradient of logits that are there.
  const auto logits = numbers({kRows, kVocabulary}, type);
  bench.both(format("softmax cross entropy, 614 x 30522 {}", name_of(type)),
             [&] {
               return ops::cross_entropy(logits, labels,
                                         {.reduction = ops::CrossEntropyOptions::Reduction::kSum});
             },
             {{"LibTorch's cross_entropy",
               [&] { return torch::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum); }}},
             {logits});
}

/// A post-norm encoder layer of BERT-large's size.
struct BertLayer {
  explicit BertLayer(torch::ScalarType type) {
    const auto weight = [&](int64_t out, int64_t in) {
      parameters.push_back((torch::randn({out, in}) * 0.02).to(type).requires_grad_());
      return parameters.back();
    };
    const auto bias = [&](int64_t out, double value) {
      parameters.push_back(torch::full({out}, value, of_type(type)).requires_grad_());
      return parameters.back();
    };
    for (auto* w : {&wq, &wk, &wv, &wo}) *w = weight(1024, 1024);
    for (auto* b : {&bq, &bk, &bv, &bo, &beta1, &beta2, &b_down}) *b = bias(1024, 0);
    for (auto* g : {&gamma1, &gamma2}) *g = bias(1024, 1);
    w_up = weight(4096, 1024);
    b_up = bias(4096, 0);
    w_down = weight(1024, 4096);
  }

  static Tensor heads(const Tensor& x) { return x.unflatten(-1, {16, 64}); }

  Tensor fused(const Tensor& x, double p) const {
    const auto context = ops::tiled_attention(heads(ops::packed_linear(x, wq, bq)),
                                              heads(ops::packed_linear(x, wk, bk)),
                                              heads(ops::packed_linear(x, wv, bv)), {.dropout = p})
                             .flatten(2);
    const auto y =
        ops::add_norm(ops::packed_linear(context, wo, bo), x, gamma1, beta1, {.dropout = p});
    const auto out = ops::gelu_linear(ops::packed_linear(y, w_up), b_up, w_down, b_down);
    return ops::add_norm(out, y, gamma2, beta2, {.dropout = p});
  }

  Tensor of_libtorch(const Tensor& x, double p, bool sdpa) const {
    const auto split = [](const Tensor& t) { return heads(t).transpose(1, 2); };
    const auto q = split(torch::linear(x, wq, bq)), k = split(torch::linear(x, wk, bk)),
               v = split(torch::linear(x, wv, bv));
    Tensor context;
    if (sdpa) {
      context = torch::scaled_dot_product_attention(q, k, v, {}, p);
    } else {
      const auto scores = torch::matmul(q * 0.125, k.transpose(-2, -1));
      context = torch::matmul(torch::dropout(torch::softmax(scores, -1), p, p > 0), v);
    }
    const auto a = torch::linear(context.transpose(1, 2).flatten(2), wo, bo);
    const auto y = torch::layer_norm(torch::dropout(a, p, p > 0) + x, {1024}, gamma1, beta1);
    const auto wide = torch::gelu(torch::linear(y, w_up, b_up));
    return torch::layer_norm(torch::dropout(torch::linear(wide, w_down, b_down), p, p > 0) + y,
                             {1024}, gamma2, beta2);
  }

  Tensors parameters;
  Tensor wq, wk, wv, wo, bq, bk, bv, bo, gamma1, beta1, gamma2, beta2, w_up, b_up, w_down, b_down;
};

void bench_layer(KernelBench& bench, torch::ScalarType type, int64_t samples, int64_t length) {
  const BertLayer layer(type);
  const auto x = numbers({samples, length, 1024}, type);
  auto leaves = layer.parameters;
  leaves.push_back(x);
  for (const double p : {0.1, 0.0}) {
    const auto name = format("BERT-large layer, {} x {} tokens, dropout {} {}", samples, length, p,
                             name_of(type));
    const Layer own = [&, p] { return layer.fused(x, p); };
    const KernelBench::Peer manual{"LibTorch's ops",
                                   [&, p] { return layer.of_libtorch(x, p, false); }};
    const KernelBench::Peer sdpa{"LibTorch's ops, with its attention",
                                 [&, p] { return layer.of_libtorch(x, p, true); }};
    bench.both(name, own, {manual, sdpa}, leaves, 3);
    bench.kept(name, own, {manual, sdpa}, leaves);
  }
}

/// torch::nn::TransformerEncoder as it is, with and without FastOps.
void bench_fast_ops(KernelBench& bench) {
  constexpr int64_t kWidth = 768, kHeads = 12, kLayers = 2, kLength = 512, kSamples = 4;
  const auto layer = torch::nn::TransformerEncoderLayerOptions(kWidth, kHeads)
                         .dim_feedforward(4 * kWidth)
                         .dropout(0.1)
                         .activation(torch::kGELU);
  torch::nn::TransformerEncoder net(torch::nn::TransformerEncoderOptions(layer, kLayers));
  const auto x = numbers({kLength, kSamples, kWidth}, torch::kFloat);
  auto leaves = net->parameters();
  leaves.push_back(x);
  FastOps fast;
  const Layer own = [&] {
    const FastOpsScope scope(fast);
    return net->forward(x);
  };
  const KernelBench::Peer theirs{"without fast_ops", [&] { return net->forward(x); }};
  const auto name =
      format("TransformerEncoder with fast_ops, {} layers of 768, {} x {} tokens fp32", kLayers,
             kSamples, kLength);
  bench.both(name, own, {theirs}, leaves, 3);
  bench.kept(name, own, {theirs}, leaves);
}

}  // namespace

std::vector<Row> bench_kernels() {
  torch::manual_seed(1);
  KernelBench bench;
  std::vector<torch::ScalarType> types = {torch::kFloat};
  if (precision::low_precision_slowdown(torch::kBFloat16) < 1) types.push_back(torch::kBFloat16);
  // FLEET_BENCH_KERNELS=attention,layer: these alone.
  const char* const wish = std::getenv("FLEET_BENCH_KERNELS");
  const auto is_wanted = [&](std::string_view name) {
    return wish == nullptr || std::string_view(wish).find(name) != std::string_view::npos;
  };
  if (is_wanted("products")) bench_products(bench);
  for (const auto type : types) {
    if (is_wanted("dropout")) bench_dropout(bench, type);
    if (is_wanted("add_norm")) bench_add_norm(bench, type);
    if (is_wanted("gelu")) bench_gelu(bench, type);
    if (is_wanted("attention")) {
      bench_attention(bench, type, 4, 512, /*causal=*/false);
      bench_attention(bench, type, 4, 512, /*causal=*/true);
      bench_attention(bench, type, 16, 128, /*causal=*/false);
    }
    if (is_wanted("cross_entropy")) bench_cross_entropy(bench, type);
    if (is_wanted("layer")) {
      bench_layer(bench, type, 4, 512);
      bench_layer(bench, type, 16, 128);
    }
  }
  if (is_wanted("fast_ops")) bench_fast_ops(bench);
  return bench.rows;
}

}  // namespace fleet::bench
