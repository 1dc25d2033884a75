// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fleet/fleet.h>

namespace adding {

/// How slowly the average follows.
struct EmaOptions {
  double decay = 0.999;
};
const fleet::FieldList& fields_of(const EmaOptions*);

/// Keeps an exponential moving average of a model's parameters, which often tests better than the
/// last ones (Polyak and Juditsky 1992): average += (1 - d) * (p - average), with
/// d = min(decay, (1 + n) / (10 + n)) after update n, so that the first values are soon forgotten.
///
/// Costs one fp32 copy of the parameters and one pass over both per update. Every rank computes the
/// same average without communication; with local SGD it follows the averages of the ranks.
///
///   optimizer.attach(std::make_shared<adding::Ema>(net, adding::EmaOptions{.decay = 0.999}));
///   {
///     const adding::Ema::Scope averaged(*optimizer.hook<adding::Ema>());
///     evaluate(net);   // the model has the averages
///   }
class Ema : public fleet::UpdateHook {
 public:
  explicit Ema(fleet::ModelHandle model, const EmaOptions& options = {});

  std::string_view name() const override { return "ema"; }
  void after_update(const fleet::UpdateReport& report) override;
  std::vector<fleet::NamedTensor> state() override;

  /// The model computes with the averages while it lives, and must not be updated meanwhile.
  class Scope {
   public:
    explicit Scope(Ema& ema);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Ema& ema_;
    std::vector<torch::Tensor> saved_;
  };

 private:
  EmaOptions options_;
  std::vector<fleet::NamedTensor> parameters_;
  std::vector<torch::Tensor> averages_;
  torch::Tensor updates_;  // a number, as a tensor: snapshots hold it
};

}  // namespace adding
