// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fleet/optim/optimizer.h"
#include "fleet/train/update/update_hook.h"

namespace fleet {

struct TrustRatioLogOptions {
  std::string area;         // of the line: "lars"
  int every = 1;            // updates
  std::string update_norm;  // how the optimizer's papers call what the ratio divides by
};

/// Prints the trust ratio of each parameter, with the norms that it is made of.
class TrustRatioLog : public UpdateHook {
 public:
  /// The optimizer must outlive it.
  TrustRatioLog(const optim::Optimizer& optimizer, TrustRatioLogOptions options)
      : optimizer_(optimizer), options_(std::move(options)) {}

  std::string_view name() const override { return options_.area; }
  void after_update(const UpdateReport& report) override;

 private:
  const optim::Optimizer& optimizer_;
  TrustRatioLogOptions options_;
};

}  // namespace fleet
