// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/loss_normalizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"

namespace fleet {
namespace {

void check(const torch::Tensor& loss, double weight) {
  if (!loss.defined() || loss.numel() != 1) {
    throw Error(
        "minimize",
        loss.defined()
            ? format("the loss has {} elements, and only one number can be minimized", loss.numel())
            : std::string("the closure returned an undefined tensor"),
        "return a mean (torch::mean), WeightedLoss{.sum, .weight}, or LossTerms{.terms}");
  }
  if (!(std::isfinite(weight) && weight >= 0)) {
    throw Error("minimize", format("the weight of the loss is {}", weight),
                "give a weight of at least 0");
  }
}

MicroBatchLoss::Term term_of(const torch::Tensor& value, double weight, double to_sum) {
  check(value, weight);
  return {.value = value, .to_sum = to_sum, .weight = weight, .sum = value.item<double>() * to_sum};
}

// A weight of 0 hides no sum that is not finite.
double mean_of(double sum, double weight) {
  if (weight > 0) return sum / weight;
  return std::isfinite(sum) ? 0 : sum;
}

}  // namespace

double MicroBatchLoss::mean() const {
  double sum = 0;
  for (const auto& term : terms) sum += mean_of(term.sum, term.weight);
  return sum;
}

MicroBatchLoss read_loss(const Loss& loss, double mean_weight, int64_t samples) {
  MicroBatchLoss result;
  if (const auto* mean = std::get_if<torch::Tensor>(&loss)) {
    result.terms.push_back(term_of(*mean, mean_weight, mean_weight));
  } else if (const auto* weighted = std::get_if<WeightedLoss>(&loss)) {
    result.terms.push_back(term_of(weighted->sum, weighted->weight, 1));
  } else {
    for (const auto& term : std::get<LossTerms>(loss).terms) {
      result.terms.push_back(term_of(term.sum, term.weight, 1));
    }
    if (result.terms.empty()) {
      throw Error("minimize", "the closure returned LossTerms without any term",
                  "return at least one {sum, weight}");
    }
  }
  const auto& terms = result.terms;
  if (std::none_of(terms.begin(), terms.end(),
                   [](const auto& term) { return term.value.requires_grad(); })) {
    throw Error("minimize", "the loss does not depend on any trainable parameter",
                "do not compute it under NoGradGuard, from detached tensors, or by .item()");
  }
  if (terms.size() > 1 && samples > 0) {
    result.weight = static_cast<double>(samples);
  } else {  // a term without anything to average over says nothing of the others
    for (const auto& term : terms) result.weight = std::max(result.weight, term.weight);
  }
  return result;
}

LossNormalizer::LossNormalizer(ParameterArena& arena, std::shared_ptr<comm::Communicator> comm)
    : arena_(arena), comm_(std::move(comm)) {}

LossNormalizer::~LossNormalizer() = default;

void LossNormalizer::open(std::vector<double> totals, bool is_local) {
  is_local_ = is_local || comm_->size() == 1;
  has_new_terms_ = false;
  batch_totals_ = std::move(totals);
  totals_.reset();
  drop();
}

void LossNormalizer::drop() {
  weight_ = 0;
  sums_.clear();
  weights_.clear();
  deferred_.clear();
  if (!is_local_) return;
  totals_.reset();
  if (has_new_terms_) set_agreed({});
}

void LossNormalizer::set_agreed(const Agreed& agreed) {
  loss_normalizer_ = agreed.loss_normalizer;
  terms_ = loss_normalizer_ > 0 ? agreed.terms : 0;
}

void LossNormalizer::agree_on_terms(double own_weight, int64_t own_terms) {
  if (terms_ > 0) return;
  has_new_terms_ = true;
  if (is_local_) {
    set_agreed({.loss_normalizer = own_weight > 0 ? own_weight : 1, .terms = own_terms});
    return;
  }
  const auto most = torch::tensor({own_weight, static_cast<double>(own_terms)}, torch::kDouble);
  comm_->all_reduce(most, comm::ReduceOp::kMax, "the usual weight of an update");
  const double weight = most[0].item<double>() * comm_->size();
  set_agreed({.loss_normalizer = weight > 0 ? weight : 1,
              .terms = static_cast<int64_t>(most[1].item<double>())});
}

void LossNormalizer::agree_on_totals(const std::vector<double>& own) {
  if (totals_) return;
  const auto sums = torch::tensor(own, torch::kDouble);
  if (!is_local_) {
    comm_->all_reduce(sums, comm::ReduceOp::kSum, "the weights of the loss's terms");
  }
  totals_.emplace(sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel());
}

void LossNormalizer::add(const MicroBatchLoss& loss, bool is_last, int64_t count) {
  const auto terms = static_cast<int64_t>(loss.terms.size());
  agree_on_terms(loss.weight * static_cast<double>(count), terms);
  if (terms != terms_) {
    throw Error("minimize",
                format("the loss has {} here, and {} in other micro-batches or on other ranks",
                       terms == 1 ? "one term" : format("{} terms", terms), terms_),
                "return the same terms for every micro-batch; one without anything to average over "
                "has weight 0");
  }
  weight_ += loss.weight;
  sums_.resize(loss.terms.size());
  weights_.resize(loss.terms.size());
  for (size_t t = 0; t < loss.terms.size(); ++t) {
    sums_[t] += loss.terms[t].sum;
    weights_[t] += loss.terms[t].weight;
  }
  if (terms_ == 1) return;
  if (!batch_totals_.empty() && batch_totals_.size() != loss.terms.size()) {
    throw Error("minimize",
                format("the batch gives {} weights, and the loss has {} terms",
                       batch_totals_.size(), terms),
                "return from loss_weights() one number for each term, in their order");
  }
  if (!batch_totals_.empty()) {
    agree_on_totals(batch_totals_);
  } else if (is_last) {
    agree_on_totals(weights_);
  }
}

torch::Tensor LossNormalizer::scaled(const MicroBatchLoss& loss, double scale) const {
  torch::Tensor sum;
  for (size_t t = 0; t < loss.terms.size(); ++t) {
    const auto& term = loss.terms[t];
    if (!term.value.requires_grad()) continue;
    const double total = terms_ > 1 ? (*totals_)[t] : loss_normalizer_;
    const double factor = total > 0 ? term.to_sum / total * scale : 0;
    // Scaled in fp32 at least: in fp16 the product would be infinite.
    const auto value = term.value.element_size() < 4 ? term.value.to(torch::kFloat) : term.value;
    sum = sum.defined() ? sum + value * factor : value * factor;
  }
  return sum;
}

void LossNormalizer::defer(const MicroBatchLoss& loss, double scale) {
  if (!std::exchange(has_logged_, true)) {
    log::info("gradient_merge",
              format("the loss has {} terms whose weights are known only with the last "
                     "micro-batch: until then each takes a backward and a copy of the gradients of "
                     "its own; a batch with loss_weights() saves that",
                     loss.terms.size()));
  }
  std::vector<torch::Tensor> parameters;
  for (const auto& span : arena_.spans()) parameters.push_back(span.parameter);
  const auto zero = torch::zeros({}, arena_.spans().front().gradient.options());
  size_t last = 0;  // whose backward may free the graph
  for (size_t t = 0; t < loss.terms.size(); ++t) {
    if (loss.terms[t].value.requires_grad()) last = t;
  }
  drop_cleared();
  deferred_.resize(loss.terms.size());
  for (size_t t = 0; t < loss.terms.size(); ++t) {
    const auto& term = loss.terms[t];
    auto& own = deferred_[t];
    own.gradients.resize(parameters.size());
    own.count(term.weight);
    if (!term.value.requires_grad()) continue;
    const auto value = term.value.element_size() < 4 ? term.value.to(torch::kFloat) : term.value;
    torch::autograd::variable_list gradients;
    compat::run_autograd([&] {
      gradients = torch::autograd::grad({value * (term.to_sum / own.divisor * scale)}, parameters,
                                        {}, /*retain_graph=*/t != last,
                                        /*create_graph=*/false, /*allow_unused=*/true);
    });
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto gradient = std::exchange(gradients[i], {});
      if (!gradient.defined()) continue;
      if (own.gradients[i].defined()) {
        own.gradients[i].add_(gradient);
      } else {  // copied: autograd's may be expanded, or one tensor for several parameters
        const AllocationTag tag(allocation::kGradients);
        own.gradients[i] = torch::zeros_like(arena_.spans()[i].gradient);
        own.gradients[i].add_(gradient);
      }
      if (!arena_.has_gradient(i)) arena_.add_gradient(i, zero);  // for zero_grad() to clear
    }
  }
}

// The divisor keeps gradients in the range of a mean's, for half.
void LossNormalizer::DeferredTerm::count(double weight) {
  if (weight == 0 || has_divisor) return;
  const torch::NoGradGuard no_grad;
  for (auto& gradient : gradients) {
    if (gradient.defined()) gradient.div_(weight);
  }
  divisor = weight;
  has_divisor = true;
}

// What torch's zero_grad() has cleared since (ParameterArena::drop_cleared).
void LossNormalizer::drop_cleared() {
  for (auto& own : deferred_) {
    for (size_t i = 0; i < own.gradients.size(); ++i) {
      if (!arena_.has_gradient(i)) own.gradients[i].reset();
    }
  }
}

void LossNormalizer::complete() {
  if (terms_ <= 1) return;
  if (!batch_totals_.empty()) {
    for (size_t t = 0; t < batch_totals_.size(); ++t) {
      if (std::abs(batch_totals_[t] - weights_[t]) <= 1e-6 * std::abs(batch_totals_[t])) continue;
      throw Error("minimize",
                  format("the batch gives weight {} for term {} of the loss, and its micro-batches "
                         "have {} together",
                         batch_totals_[t], t, weights_[t]),
                  "make loss_weights() add up what the closure returns");
    }
  }
  agree_on_totals(weights_);
  drop_cleared();
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < arena_.spans().size(); ++i) {
    torch::Tensor sum;
    for (size_t t = 0; t < deferred_.size(); ++t) {
      const auto& own = deferred_[t];
      if (!own.gradients[i].defined()) continue;
      const double factor = (*totals_)[t] > 0 ? own.divisor / (*totals_)[t] : 0;
      sum = sum.defined() ? sum.add_(own.gradients[i], factor) : own.gradients[i].mul_(factor);
    }
    if (sum.defined()) arena_.add_gradient(i, sum);
  }
  deferred_.clear();
}

void LossNormalizer::contribute_zeros() {
  agree_on_terms(0, 0);
  if (terms_ > 1) agree_on_totals(std::vector<double>(static_cast<size_t>(terms_), 0));
}

double LossNormalizer::loss_sum() const {
  if (terms_ <= 1) return sums_.empty() ? 0 : sums_.front();
  double sum = 0;
  for (size_t t = 0; t < sums_.size(); ++t) sum += mean_of(sums_[t], (*totals_)[t]);
  return sum;
}

double LossNormalizer::mean_loss(double loss_sum, double weight) const {
  return terms_ > 1 ? loss_sum : loss_sum / weight;
}

}  // namespace fleet
