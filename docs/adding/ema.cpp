// SPDX-License-Identifier: Apache-2.0
#include "docs/adding/ema.h"

namespace adding {

// Serves flags, JSON, help and validation.
const fleet::FieldList& fields_of(const EmaOptions*) {
  static const fleet::FieldList list{
      .area = "ema",
      .fields = {fleet::field<&EmaOptions::decay>("decay", "weight of the average in an update")
                     .at_least(0)
                     .below(1)}};
  return list;
}

Ema::Ema(fleet::ModelHandle model, const EmaOptions& options)
    : options_(options),
      parameters_(model.parameters()),
      updates_(torch::zeros({1}, torch::kLong)) {
  for (const auto& [name, parameter] : parameters_) {
    averages_.push_back(
        parameter.detach().to(torch::kFloat, /*non_blocking=*/false, /*copy=*/true));
  }
}

void Ema::after_update(const fleet::UpdateReport& report) {
  // With local SGD only an average is the same on all ranks.
  const bool is_shared = report.synced || (report.updated && report.sync_every == 1);
  if (!is_shared) return;
  updates_ += 1;
  const auto n = static_cast<double>(updates_.item<int64_t>());
  const double decay = std::min(options_.decay, (1 + n) / (10 + n));
  for (size_t i = 0; i < averages_.size(); ++i) {
    averages_[i].lerp_(parameters_[i].tensor.detach().to(torch::kFloat), 1 - decay);
  }
}

std::vector<fleet::NamedTensor> Ema::state() {
  std::vector<fleet::NamedTensor> state = {{"updates", updates_}};
  for (size_t i = 0; i < averages_.size(); ++i) {
    state.push_back({"average/" + parameters_[i].name, averages_[i]});
  }
  return state;
}

Ema::Scope::Scope(Ema& ema) : ema_(ema) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < ema.averages_.size(); ++i) {
    auto& parameter = ema.parameters_[i].tensor;
    saved_.push_back(parameter.detach().clone());
    parameter.copy_(ema.averages_[i]);
  }
}

Ema::Scope::~Scope() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < saved_.size(); ++i) ema_.parameters_[i].tensor.copy_(saved_[i]);
}

}  // namespace adding
