// SPDX-License-Identifier: Apache-2.0
// Nets of attention blocks.

#include <optional>
#include <utility>

#include <torch/torch.h>

#include "bench/zoo/zoo.h"

namespace fleet::zoo {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using torch::nn::Linear;
using torch::nn::LinearOptions;

constexpr int64_t kWidth = 128, kHeads = 4, kVocabulary = 1000;
constexpr double kDropout = 0.1;

// [batch, tokens, width] to [batch, heads, tokens, width / heads].
Tensor heads_of(const Tensor& x) {
  return x.view({x.size(0), x.size(1), kHeads, -1}).transpose(1, 2);
}
Tensor joined(const Tensor& x) {
  return x.transpose(1, 2).contiguous().view({x.size(0), x.size(2), kWidth});
}

Tensor tokens_of(const Net& net, int64_t length, int64_t update) {
  if (net.device().is_meta()) {
    return torch::empty({net.samples(), length},
                        torch::TensorOptions(torch::kLong).device(torch::kMeta));
  }
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + update));
  return torch::randint(kVocabulary, {net.samples(), length}, generator, torch::kLong);
}

Tensor token_loss(const Tensor& logits, const Tensor& targets) {
  return F::cross_entropy(logits.reshape({-1, logits.size(-1)}), targets.reshape({-1}));
}

// ---- GPT

struct GptBlock : torch::nn::Module {
  GptBlock()
      : first(
            register_module("first", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        second(
            register_module("second", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        qkv(register_module("qkv", Linear(kWidth, 3 * kWidth))),
        out(register_module("out", Linear(kWidth, kWidth))),
        up(register_module("up", Linear(kWidth, 4 * kWidth))),
        down(register_module("down", Linear(4 * kWidth, kWidth))) {}

  // Keys and values are appended to `cache`, as for generation.
  Tensor forward(const Tensor& x, std::vector<std::pair<Tensor, Tensor>>& cache) {
    const auto parts = qkv(first(x)).chunk(3, -1);
    const auto key = heads_of(parts[1]), value = heads_of(parts[2]);
    cache.emplace_back(key, value);
    const auto attended = torch::scaled_dot_product_attention(
        heads_of(parts[0]), key, value, /*attn_mask=*/{}, is_training() ? kDropout : 0,
        /*is_causal=*/true);
    auto y = x + torch::dropout(out(joined(attended)), kDropout, is_training());
    return y + torch::dropout(down(torch::gelu(up(second(y)), "tanh")), kDropout, is_training());
  }

  torch::nn::LayerNorm first, second;
  Linear qkv, out, up, down;
};

struct Gpt final : Net {
  static constexpr int64_t kLength = 256, kBlocks = 12;
  explicit Gpt(const NetOptions& o) : Net(o, 4) {
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    positions = register_module("positions", torch::nn::Embedding(kLength, kWidth));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<GptBlock>()));
    }
  }

  Tensor loss(int64_t update) override {
    const auto ids = tokens_of(*this, kLength, update);
    const auto places = torch::arange(kLength, torch::TensorOptions(torch::kLong).device(device()));
    auto x = torch::dropout(tokens(ids) + positions(places), kDropout, is_training());
    std::vector<std::pair<Tensor, Tensor>> cache;
    for (const auto& block : blocks) x = block->forward(x, cache);
    return token_loss(torch::matmul(norm(x), tokens->weight.t()), ids.roll(-1, 1));
  }

  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  std::vector<std::shared_ptr<GptBlock>> blocks;
};

// ---- T5's shape

struct RmsNorm : torch::nn::Module {
  RmsNorm() : weight(register_parameter("weight", torch::ones({kWidth}))) {}
  Tensor forward(const Tensor& x) {
    return weight * (x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-6));
  }
  Tensor weight;
};

struct T5Attention : torch::nn::Module {
  T5Attention()
      : query(register_module("query", Linear(LinearOptions(kWidth, kWidth).bias(false)))),
        key(register_module("key", Linear(LinearOptions(kWidth, kWidth).bias(false)))),
        value(register_module("value", Linear(LinearOptions(kWidth, kWidth).bias(false)))),
        out(register_module("out", Linear(LinearOptions(kWidth, kWidth).bias(false)))) {}
  Tensor forward(const Tensor& x, const Tensor& from, const Tensor& bias) {
    auto scores = torch::matmul(heads_of(query(x)), heads_of(key(from)).transpose(2, 3));
    scores += bias;
    const auto weights = torch::dropout(torch::softmax(scores, -1), kDropout, is_training());
    return out(joined(torch::matmul(weights, heads_of(value(from)))));
  }
  Linear query, key, value, out;
};

struct T5Block : torch::nn::Module {
  explicit T5Block(bool is_decoder) {
    own = register_module("own", std::make_shared<T5Attention>());
    norms.push_back(register_module("norm0", std::make_shared<RmsNorm>()));
    norms.push_back(register_module("norm1", std::make_shared<RmsNorm>()));
    if (is_decoder) {
      cross = register_module("cross", std::make_shared<T5Attention>());
      norms.push_back(register_module("norm2", std::make_shared<RmsNorm>()));
    }
    up = register_module("up", Linear(LinearOptions(kWidth, 4 * kWidth).bias(false)));
    down = register_module("down", Linear(LinearOptions(4 * kWidth, kWidth).bias(false)));
  }
  Tensor add(const Tensor& x, const Tensor& more) {
    return x + torch::dropout(more, kDropout, is_training());
  }
  Tensor forward(Tensor x, const Tensor& bias, const Tensor& encoded, const Tensor& cross_bias) {
    const auto normed = norms[0]->forward(x);
    x = add(x, own->forward(normed, normed, bias));
    if (cross) x = add(x, cross->forward(norms[2]->forward(x), encoded, cross_bias));
    const auto wide =
        torch::dropout(torch::relu(up(norms[1]->forward(x))), kDropout, is_training());
    return add(x, down(wide));
  }
  std::shared_ptr<T5Attention> own, cross;
  std::vector<std::shared_ptr<RmsNorm>> norms;
  Linear up{nullptr}, down{nullptr};
};

struct EncoderDecoder final : Net {
  static constexpr int64_t kLength = 96, kBlocks = 6;
  explicit EncoderDecoder(const NetOptions& o) : Net(o, 8) {
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    distances = register_module("distances", torch::nn::Embedding(2 * kLength, kHeads));
    norm = register_module("norm", std::make_shared<RmsNorm>());
    for (int64_t i = 0; i < kBlocks; ++i) {
      const auto number = std::to_string(i);
      encoder.push_back(register_module("encoder" + number, std::make_shared<T5Block>(false)));
      decoder.push_back(register_module("decoder" + number, std::make_shared<T5Block>(true)));
    }
  }
  // [1, heads, length, length], made once and read by every block.
  Tensor position_bias(bool is_causal) {
    const auto place = torch::arange(kLength, torch::TensorOptions(torch::kLong).device(device()));
    auto bias = distances(place.unsqueeze(0) - place.unsqueeze(1) + kLength).permute({2, 0, 1});
    if (is_causal) {
      const auto later =
          torch::ones({kLength, kLength}, torch::TensorOptions(dtype()).device(device())).triu(1);
      bias = bias + later * -1e9;
    }
    return bias.unsqueeze(0);
  }
  Tensor loss(int64_t update) override {
    const auto ids = tokens_of(*this, kLength, update);
    auto x = torch::dropout(tokens(ids), kDropout, is_training());
    const auto bias = position_bias(false), causal = position_bias(true);
    const auto none = torch::zeros({1}, torch::TensorOptions(dtype()).device(device()));
    for (const auto& block : encoder) x = block->forward(x, bias, {}, {});
    const auto encoded = norm->forward(x);
    auto y = tokens(ids.flip({1}));
    for (const auto& block : decoder) y = block->forward(y, causal, encoded, none);
    return token_loss(torch::matmul(norm->forward(y), tokens->weight.t()), ids);
  }
  torch::nn::Embedding tokens{nullptr}, distances{nullptr};
  std::shared_ptr<RmsNorm> norm;
  std::vector<std::shared_ptr<T5Block>> encoder, decoder;
};

// ---- ViT

struct VisionTransformer final : Net {
  static constexpr int64_t kSide = 96, kPatch = 8, kBlocks = 12, kClasses = 10;
  explicit VisionTransformer(const NetOptions& o) : Net(o, 8) {
    patches = register_module(
        "patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, kWidth, kPatch).stride(kPatch)));
    const auto count = (kSide / kPatch) * (kSide / kPatch);
    positions = register_parameter("positions", torch::randn({1, count + 1, kWidth}) * 0.02);
    first = register_parameter("first", torch::zeros({1, 1, kWidth}));
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i),
                                       torch::nn::TransformerEncoderLayer(
                                           torch::nn::TransformerEncoderLayerOptions(kWidth, kHeads)
                                               .dim_feedforward(4 * kWidth)
                                               .dropout(kDropout)
                                               .activation(torch::kGELU))));
    }
    classes = register_module("classes", Linear(kWidth, kClasses));
  }
  Tensor loss(int64_t update) override {
    const auto images = noise(*this, {samples(), 3, kSide, kSide}, update);
    auto x = patches(images).flatten(2).transpose(1, 2);
    x = torch::cat({first.expand({samples(), -1, -1}), x}, 1) + positions;
    x = x.transpose(0, 1);
    for (auto& block : blocks) x = block(x);
    const auto labels =
        torch::arange(samples(), torch::TensorOptions(torch::kLong).device(device())) % kClasses;
    return F::cross_entropy(classes(x[0]), labels);
  }
  torch::nn::Conv2d patches{nullptr};
  Tensor positions, first;
  std::vector<torch::nn::TransformerEncoderLayer> blocks;
  Linear classes{nullptr};
};

// ---- mixture of experts

struct Experts : torch::nn::Module {
  static constexpr int64_t kExperts = 4, kChosen = 2;
  Experts() : route(register_module("route", Linear(kWidth, kExperts))) {
    for (int64_t i = 0; i < kExperts; ++i) {
      const auto number = std::to_string(i);
      up.push_back(register_module("up" + number, Linear(kWidth, 4 * kWidth)));
      down.push_back(register_module("down" + number, Linear(4 * kWidth, kWidth)));
    }
  }
  Tensor forward(const Tensor& x) {
    const auto flat = x.reshape({-1, kWidth});
    const auto [weights, chosen] = torch::softmax(route(flat), -1).topk(kChosen, -1);
    auto result = torch::zeros_like(flat);
    for (size_t i = 0; i < up.size(); ++i) {
      const auto at = places_of(chosen, static_cast<int64_t>(i));
      const auto token = at.select(1, 0), place = at.select(1, 1);
      const auto mine = flat.index_select(0, token);
      const auto y = down[i](torch::silu(up[i](mine)));
      result = result.index_add(0, token, y * weights.index({token, place}).unsqueeze(-1));
    }
    return result.view_as(x);
  }
  // As many tokens as the data say; without data (meta), as many for each expert.
  static Tensor places_of(const Tensor& chosen, int64_t expert) {
    if (chosen.is_meta()) return torch::empty({chosen.numel() / kExperts, 2}, chosen.options());
    return (chosen == expert).nonzero();
  }
  Linear route;
  std::vector<Linear> up, down;
};

struct MixtureOfExperts final : Net {
  static constexpr int64_t kLength = 128, kBlocks = 6;
  explicit MixtureOfExperts(const NetOptions& o) : Net(o, 8) {
    tokens = register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth));
    for (int64_t i = 0; i < kBlocks; ++i) {
      const auto number = std::to_string(i);
      attention.push_back(register_module("attention" + number, std::make_shared<T5Attention>()));
      experts.push_back(register_module("experts" + number, std::make_shared<Experts>()));
      norms.push_back(register_module("norm" + number, std::make_shared<RmsNorm>()));
    }
  }
  Tensor loss(int64_t update) override {
    const auto ids = tokens_of(*this, kLength, update);
    auto x = tokens(ids);
    const auto none = torch::zeros({1}, torch::TensorOptions(dtype()).device(device()));
    for (size_t i = 0; i < experts.size(); ++i) {
      const auto normed = norms[i]->forward(x);
      x = x + attention[i]->forward(normed, normed, none);
      x = x + experts[i]->forward(norms[i]->forward(x));
    }
    return token_loss(torch::matmul(x, tokens->weight.t()), ids.roll(-1, 1));
  }
  torch::nn::Embedding tokens{nullptr};
  std::vector<std::shared_ptr<T5Attention>> attention;
  std::vector<std::shared_ptr<Experts>> experts;
  std::vector<std::shared_ptr<RmsNorm>> norms;
};

}  // namespace

std::shared_ptr<Net> gpt(const NetOptions& options) { return std::make_shared<Gpt>(options); }
std::shared_ptr<Net> encoder_decoder(const NetOptions& options) {
  return std::make_shared<EncoderDecoder>(options);
}
std::shared_ptr<Net> vision_transformer(const NetOptions& options) {
  return std::make_shared<VisionTransformer>(options);
}
std::shared_ptr<Net> mixture_of_experts(const NetOptions& options) {
  return std::make_shared<MixtureOfExperts>(options);
}

}  // namespace fleet::zoo
