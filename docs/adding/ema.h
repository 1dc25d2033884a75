// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fleet/fleet.h>

namespace adding {

struct EmaOptions {
  double decay = 0.999;
};
const fleet::FieldList& fields_of(const EmaOptions*);

/// Keeps an exponential moving average of a model's parameters, which often tests better than the
/// last ones (Polyak and Juditsky 1992): average += (1 - d) * (p - average), with
/// d = min(decay, (1 + n) / (10 + n)) after update n, so that the first values are soon forgotten.
///
/// Costs one fp32 copy of the parameters and one pass over both per update. Every rank computes the
/// same average without communication; with local SGD, call `after_update` only where
/// `report.synced`.
///
///   adding::Ema ema(net, {.decay = 0.999});
///   if (optimizer.minimize(batch, loss).updated) ema.after_update();
///   {
///     const adding::Ema::Scope averaged(ema);   // the model has the averages
///     evaluate(net);
///   }
class Ema {
 public:
  explicit Ema(fleet::ModelHandle model, const EmaOptions& options = {});
  void after_update();

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
  int64_t updates_ = 0;
};

}  // namespace adding
