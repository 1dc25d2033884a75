// SPDX-License-Identifier: Apache-2.0
#include "tests/memory/random_program.h"

#include "fleet/core/text/format.h"
#include "fleet/memory/checkpoint.h"
#include "fleet/memory/recompute.h"

namespace fleet::testing {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kSide = 6;  // every value is 6 x 6, so that any op takes any value

// Saves its input and its result.
struct SquarePlus : torch::autograd::Function<SquarePlus> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y) {
    const auto result = (x * x).add_(y);
    ctx->save_for_backward({x, result});
    return result;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    return {gradients[0] * 2 * saved[0] + saved[1] * 0.01, gradients[0]};
  }
};

// Saves an intermediate value.
struct Wave : torch::autograd::Function<Wave> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    const auto inner = x.cos();
    ctx->save_for_backward({inner});
    return x.sin();
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    return {gradients[0] * ctx->get_saved_variables()[0]};
  }
};

// Writes to its input.
struct Scale : torch::autograd::Function<Scale> {
  static Tensor forward(AutogradContext* ctx, Tensor x, double factor) {
    const torch::NoGradGuard no_grad;
    ctx->saved_data["factor"] = factor;
    x.mul_(factor);
    ctx->mark_dirty({x});
    return x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    return {gradients[0] * ctx->saved_data["factor"].toDouble(), Tensor()};
  }
};

const std::vector<std::string> kKinds = {
    "add",         "mul",        "sub",         "matmul",     "linear",     "relu",
    "gelu",        "tanh",       "sigmoid",     "exp",        "layer_norm", "softmax",
    "dropout",     "rand_like",  "bernoulli",   "normal_",    "relu_",      "add_",
    "mul_scalar_", "mul_",       "tanh_",       "t",          "view",       "halves",
    "write_row",   "index",      "cat",         "chunk",      "detach",     "no_grad",
    "square",      "wave",       "scale_",      "batch_norm", "ema",        "t_",
    "clone",       "contiguous", "masked_fill", "where",      "cumsum",     "max",
    "embedding",   "index_put_", "unbind",      "sdpa",       "conv",       "norm",
    "unsqueeze_",  "raw",        "expand",      "leaf",       "dropout_",   "lerp_",
    "copy_",       "as_strided", "out",         "addmm",      "buffer",     "zero_row_",
    "checkpoint",  "recompute",  "bf16",        "double",     "complex",    "channels_last",
    "empty",       "sparse",     "generator",   "gradient",   "from_blob",  "renorm_",
    "mkldnn"};

int kind_of(const std::string& name) {
  return static_cast<int>(std::ranges::find(kKinds, name) - kKinds.begin());
}

}  // namespace

RandomProgram::RandomProgram(uint64_t number)
    : random_(number),
      dtype_(number % 8 == 3   ? torch::kDouble
             : number % 8 == 5 ? torch::kBFloat16
                               : torch::kFloat),
      generator_(at::detail::createCPUGenerator()) {
  const auto generator = at::detail::createCPUGenerator(number + 1);
  const auto options = torch::TensorOptions().dtype(dtype_);
  for (int i = 0; i < 4; ++i) {
    start_.push_back(torch::randn({kSide, kSide}, generator, options) * 0.4);
    parameters_.push_back(torch::zeros({kSide, kSide}, options).requires_grad_());
  }
  for (int i = 0; i < 2; ++i) {
    start_.push_back(torch::randn({kSide}, generator, options) * 0.4 + 1);
    parameters_.push_back(torch::zeros({kSide}, options).requires_grad_());
  }
  start_.push_back(torch::zeros({kSide}, options));             // running mean
  start_.push_back(torch::ones({kSide}, options));              // running variance
  start_.push_back(torch::ones({kSide, kSide}, options) * .5);  // an average that the forward moves
  for (int i = 0; i < 3; ++i) buffers_.push_back(start_[6 + i].clone());
  data_ = torch::randn({kSide, kSide}, generator, options);
  indices_ =
      torch::randint(0, kSide, {kSide}, generator, torch::TensorOptions().dtype(torch::kLong));
  steps_ = draw(8 + static_cast<int>(random_() % 40), 0);
}

void RandomProgram::reset() {
  const torch::NoGradGuard no_grad;
  generator_.set_current_seed(6);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    // Fresh ones, so that versions and accumulators start anew.
    parameters_[i] = start_[i].clone().requires_grad_();
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i] = start_[parameters_.size() + i].clone();
  }
}

std::vector<RandomProgram::Step> RandomProgram::draw(int steps, int depth) {
  std::vector<Step> result;
  // In-place ops make autograd reject most programs, so there are few of them.
  const auto is_rare = [](const std::string& name) { return name.ends_with("_") || name == "out"; };
  for (int i = 0; i < steps; ++i) {
    Step step;
    do {
      step.kind = static_cast<int>(random_() % kKinds.size());
    } while (is_rare(kKinds[static_cast<size_t>(step.kind)]) && random_() % 3 != 0);
    const auto& name = kKinds[static_cast<size_t>(step.kind)];
    if (name == "recompute" && depth >= 2) continue;
    step.a = static_cast<int>(random_() % 4);
    step.b = static_cast<int>(random_() % 7);
    step.c = static_cast<int>(random_() % 7);
    step.x = static_cast<double>(random_() % 1000) / 1000;
    if (name == "recompute") step.inner = draw(2 + static_cast<int>(random_() % 8), depth + 1);
    result.push_back(std::move(step));
    if (random_() % 8 == 0) result.push_back({.kind = kind_of("checkpoint")});
  }
  return result;
}

Tensor& RandomProgram::pick(std::vector<Tensor>& pool, int place) const {
  return pool[pool.size() - 1 - static_cast<size_t>(place) % pool.size()];
}

torch::Tensor RandomProgram::forward(bool with_recompute) {
  checkpoints_ = 0;
  std::vector<Tensor> pool{data_.clone(), parameters_[0] * 1, data_ + parameters_[1]};
  run(steps_, pool, with_recompute);
  auto loss = pool.back().tanh().sum();
  for (size_t i = 0; i < pool.size(); i += 5) loss = loss + pool[i].tanh().mean();
  return loss;
}

void RandomProgram::run(const std::vector<Step>& steps, std::vector<Tensor>& pool,
                        bool with_recompute) {
  for (const auto& step : steps) {
    run(step, pool, with_recompute);
    if (pool.size() > 12) pool.erase(pool.begin() + 1);
  }
}

void RandomProgram::run(const Step& step, std::vector<Tensor>& pool, bool with_recompute) {
  const auto& name = kKinds[static_cast<size_t>(step.kind)];
  const auto is = [&](const char* kind) { return name == kind; };
  auto& a = pick(pool, step.a);
  const auto b = pick(pool, step.b);
  const auto c = pick(pool, step.c);
  const auto& weight = parameters_[static_cast<size_t>(step.b) % 4];
  Tensor r;
  if (is("checkpoint")) {
    checkpoint(a, format("mark.{}", checkpoints_++));
    return;
  }
  if (is("recompute")) {
    if (!with_recompute) return run(step.inner, pool, false);
    return recompute([&] { run(step.inner, pool, true); });
  }
  if (is("add")) r = a + b;
  if (is("mul")) r = a * b;
  if (is("sub")) r = a - b * step.x;
  if (is("matmul")) r = torch::matmul(a, weight);
  if (is("linear")) r = torch::nn::functional::linear(a, weight, parameters_[4]);
  if (is("relu")) r = torch::relu(a);
  if (is("gelu")) r = torch::gelu(a);
  if (is("tanh")) r = torch::tanh(a);
  if (is("sigmoid")) r = torch::sigmoid(a);
  if (is("exp")) r = torch::exp(torch::clamp(a, -2, 1));
  if (is("layer_norm")) r = torch::layer_norm(a, {kSide}, parameters_[4], parameters_[5]);
  if (is("softmax")) r = torch::softmax(a, step.b % 2);
  if (is("dropout")) r = torch::dropout(a, 0.3, true);
  if (is("rand_like")) r = a * torch::rand_like(a);
  if (is("bernoulli")) r = a * torch::bernoulli(torch::sigmoid(b.detach()));
  if (is("normal_")) r = a + torch::empty_like(a).normal_(0, 0.1);
  if (is("relu_")) r = a.relu_();
  if (is("add_")) r = a.add_(b, 0.5);
  if (is("mul_scalar_")) r = a.mul_(0.5 + step.x);
  // By itself: LibTorch leaks the graph of x.mul_(x) when its backward throws.
  if (is("mul_")) r = a.mul_(a.is_alias_of(b) ? b.detach() : b);
  if (is("tanh_")) r = (a * 0.7).tanh_();
  if (is("t")) r = a.t();
  if (is("view")) r = a.reshape({kSide * kSide}).view({kSide, kSide});
  if (is("halves")) r = torch::cat({a.narrow(0, 3, 3), b.narrow(0, 0, 3) * 2}, 0);
  if (is("write_row")) {
    auto copy = a * 1;
    copy.select(0, step.b % kSide).add_(b.select(0, 1).detach());
    r = copy;
  }
  if (is("index")) r = a.index_select(0, indices_);
  if (is("cat")) r = torch::cat({a, b, c}, 1).narrow(1, step.b % 12, kSide);
  if (is("chunk")) {
    const auto parts = a.chunk(2, 1);
    r = torch::cat({parts[1], parts[0] * parts[1]}, 1);
  }
  if (is("detach")) r = a.detach() * weight;
  if (is("no_grad")) {
    Tensor factor;
    {
      const torch::NoGradGuard no_grad;
      factor = (a * b).sigmoid();
    }
    r = a * factor;
  }
  if (is("square")) r = SquarePlus::apply(a, b);
  if (is("wave")) r = Wave::apply(a);
  if (is("scale_")) r = Scale::apply(a * 1, 0.5 + step.x);
  if (is("batch_norm")) {
    r = torch::batch_norm(a, parameters_[4], parameters_[5], buffers_[0], buffers_[1],
                          step.b % 3 != 0, 0.1, 1e-5, false);
  }
  if (is("ema")) {
    {
      const torch::NoGradGuard no_grad;
      buffers_[2].mul_(0.9).add_(a.detach(), 0.1);
    }
    r = step.b % 2 ? a - buffers_[2] : a * buffers_[2].clone();
  }
  if (is("t_")) r = (a * 1.5).t_();
  if (is("clone")) r = a.clone();
  if (is("contiguous")) r = a.t().contiguous();
  if (is("masked_fill")) r = a.masked_fill(b > 0.5, 0.1);
  if (is("where")) r = torch::where(b > 0, a, c);
  if (is("cumsum")) r = torch::cumsum(a, 0) * 0.3;
  if (is("max")) {
    const auto [values, places] = a.max(1);
    r = a * values.unsqueeze(1) + places.to(dtype_).unsqueeze(1) * 0.01;
  }
  if (is("embedding")) r = torch::embedding(weight, indices_) + a;
  if (is("index_put_")) {
    auto copy = a.clone();
    copy.index_put_({torch::indexing::None, indices_.narrow(0, 0, 2)},
                    b.narrow(1, 0, 2).unsqueeze(0));
    r = copy;
  }
  if (is("unbind")) {
    auto rows = a.unbind(0);
    std::swap(rows[0], rows[5]);
    r = torch::stack(rows);
  }
  if (is("sdpa")) {
    r = torch::scaled_dot_product_attention(
            a.view({1, 1, kSide, kSide}), b.reshape({1, 1, kSide, kSide}),
            c.reshape({1, 1, kSide, kSide}), {}, step.x < .5 ? 0. : .2)
            .view({kSide, kSide});
  }
  if (is("conv")) {
    r = torch::conv1d(a.unsqueeze(0), weight.unsqueeze(2), parameters_[5]).squeeze(0);
  }
  if (is("norm")) r = a / (a.norm() + 1);
  if (is("unsqueeze_")) r = (a * 2).unsqueeze_(0).squeeze(0);
  if (is("raw")) {
    const auto fresh = torch::empty({kSide, kSide});
    for (int i = 0; i < kSide * kSide; ++i) fresh.data_ptr<float>()[i] = static_cast<float>(i % 5);
    r = a + fresh.to(dtype_) * b;
  }
  if (is("expand")) r = a.select(0, 1).expand({kSide, kSide}) * b;
  if (is("leaf")) r = a.detach().requires_grad_() * b;
  if (is("dropout_")) r = torch::dropout_(a, 0.2, true);
  if (is("lerp_")) r = a.lerp_(b.detach(), 0.3);
  if (is("copy_")) r = torch::zeros_like(a).copy_(a) * b;
  if (is("as_strided")) r = (a * 1).as_strided({kSide, kSide}, {1, kSide}) * b;
  if (is("out")) {
    const torch::NoGradGuard no_grad;
    auto target = torch::empty({kSide, kSide}, dtype_);
    torch::mul_out(target, a, b);
    r = target;
  }
  if (is("addmm")) r = torch::addmm(a, b, weight, 0.5, 0.5);
  if (is("buffer")) r = a * buffers_[2];
  if (is("zero_row_")) {
    a.narrow(0, step.b % kSide, 1).zero_();
    r = a;
  }
  if (!r.defined()) r = run_unusual(step, a, b);
  pool.push_back(std::move(r));
}

torch::Tensor RandomProgram::run_unusual(const Step& step, const Tensor& a, const Tensor& b) {
  const auto& name = kKinds[static_cast<size_t>(step.kind)];
  const auto is = [&](const char* kind) { return name == kind; };
  const auto& weight = parameters_[static_cast<size_t>(step.b) % 4];
  if (is("bf16")) {
    return torch::matmul(a.to(torch::kBFloat16), weight.to(torch::kBFloat16)).to(dtype_);
  }
  if (is("double")) return (a.to(torch::kDouble) * b.to(torch::kDouble)).sigmoid().to(dtype_);
  if (is("complex")) {
    return complex(step.c % 4, a.to(torch::kFloat), b.to(torch::kFloat)).to(dtype_);
  }
  if (is("channels_last")) {
    const auto image = a.reshape({1, 4, 3, 3}).contiguous(torch::MemoryFormat::ChannelsLast);
    return torch::max_pool2d(torch::relu(image * 2), 3, 1, 1).reshape({kSide, kSide}) * b;
  }
  if (is("empty")) {
    const auto none = a.narrow(0, step.c % kSide, 0);
    return torch::cat({a, torch::matmul(none, weight).tanh()}, 0) + none.sum() * b;
  }
  if (is("sparse")) {
    return sparse(step.c % 4, a.to(torch::kFloat), b.to(torch::kFloat)).to(dtype_);
  }
  if (is("generator")) {
    return step.c % 2 ? a * torch::bernoulli(torch::sigmoid(b.detach()), generator_)
                      : a * torch::rand({kSide, kSide}, generator_, a.options());
  }
  if (is("gradient")) {
    const auto value = (a * weight).tanh().sum();
    return a * torch::autograd::grad({value}, {weight}, {}, /*retain_graph=*/true,
                                     /*create_graph=*/step.c % 2 == 0)[0];
  }
  if (is("from_blob")) {
    std::vector<float> numbers(kSide * kSide, static_cast<float>(step.x));
    const auto mine = torch::from_blob(numbers.data(), {kSide, kSide}).clone().to(dtype_);
    std::ranges::fill(numbers, 1e9F);  // as if it was gone, which it soon is
    return a * mine + mine.t() * b;
  }
  if (is("renorm_")) {
    {
      const torch::NoGradGuard no_grad;
      auto table = weight.detach();
      torch::embedding_renorm_(table, indices_, 0.5, 2);
    }
    return torch::embedding(weight, indices_) * a;
  }
  if (is("mkldnn")) return torch::relu(a.to(torch::kFloat).to_mkldnn()).to_dense().to(dtype_) * b;
  throw std::logic_error("a kind of step without meaning: " + name);
}

torch::Tensor RandomProgram::complex(int way, const Tensor& a, const Tensor& b) {
  const auto z = torch::complex(a, b);
  const auto turned = torch::conj(z);
  if (way == 0) return torch::imag(turned) * a;  // negated
  if (way == 1) return torch::real(torch::matmul(turned.t(), z).tanh());
  if (way == 2) return torch::view_as_real(z * turned).sum(-1);
  return torch::abs(z * 2 + turned).clamp_min(0.1).log();
}

torch::Tensor RandomProgram::sparse(int way, const Tensor& a, const Tensor& b) const {
  const auto data = (data_ * (data_ > 0)).to(torch::kFloat);
  if (way == 0) return torch::mm(data.to_sparse(), a).tanh() * b;
  if (way == 1) return torch::mm((a * (b > 0)).to_sparse(), b);
  if (way == 2) return torch::mm(data.to_sparse_csr(), a) + b;
  // Written to between two reads of it.
  const auto mine = data.to_sparse();
  const auto before = a.sparse_mask(mine).to_dense();
  {
    const torch::NoGradGuard no_grad;
    mine.mul_(0.5);
  }
  return torch::mm(mine, b) * before.sin();
}

std::string RandomProgram::text() const { return text(steps_, 0); }

std::string RandomProgram::text(const std::vector<Step>& steps, int depth) {
  std::string result;
  for (const auto& step : steps) {
    result += format("{}{} {} {} {} {}\n", std::string(static_cast<size_t>(2 * depth), ' '),
                     kKinds[static_cast<size_t>(step.kind)], step.a, step.b, step.c, step.x);
    result += text(step.inner, depth + 1);
  }
  return result;
}

}  // namespace fleet::testing
