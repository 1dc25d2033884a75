// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fleet/core/parameter_arena.h"
#include "fleet/optim/parameter_group.h"

namespace fleet::optim {

/// How LARS or LAMB scaled one parameter's update in the last step.
struct TrustRatio {
  std::string name;
  double ratio = 1;
  double value_norm = 0;
  double update_norm = 0;  // LARS: of the gradient
};

/// The trust ratio of every span in the step under way. Spans are set by several threads at once,
/// each span by one of them.
class TrustRatios {
 public:
  void resize(size_t spans) { spans_.assign(spans, {}); }
  /// Before a step: no span has one.
  void clear();
  void set(size_t span, double ratio, double value_norm, double update_norm) {
    spans_[span] = {ratio, value_norm, update_norm, /*is_fresh=*/true};
  }
  double ratio(size_t span) const { return spans_[span].ratio; }
  /// Of the spans that had one in the last step.
  std::vector<TrustRatio> list(const ParameterArena& arena,
                               const std::vector<SpanSettings>& settings) const;

 private:
  struct Span {
    double ratio = 1;
    double value_norm = 0;
    double update_norm = 0;
    bool is_fresh = false;  // of the last step
  };
  std::vector<Span> spans_;
};

}  // namespace fleet::optim
