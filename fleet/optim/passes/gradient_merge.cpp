// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/passes/gradient_merge.h"

#include <algorithm>
#include <string>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::optim {

GradientMerge::GradientMerge(const GradientMergeOptions& options) : options_(options) {
  std::vector<std::string> problems;
  if (options.k_steps < 1) {
    problems.push_back(
        format("k_steps is {}; an update needs at least 1 micro-batch", options.k_steps));
  }
  if (options.micro_batch_size < 0) {
    problems.push_back(format("micro_batch_size is {}", options.micro_batch_size));
  }
  if (options.k_steps > 1 && options.micro_batch_size > 0) {
    problems.push_back(
        format("k_steps = {} says how many micro-batches a batch has, micro_batch_size = {} how "
               "large they "
               "are; give one of them",
               options.k_steps, options.micro_batch_size));
  }
  if (!problems.empty()) {
    throw UsageError::all("gradient_merge", "these options are not valid:", problems);
  }
}

std::vector<GradientMerge::Range> GradientMerge::split(int64_t samples) const {
  const int64_t size = options_.micro_batch_size;
  const int64_t wanted = size > 0 ? (samples + size - 1) / size : options_.k_steps;
  const int64_t count = std::min(wanted, samples);
  std::vector<Range> ranges;
  for (int64_t i = 0; i < count; ++i) {
    ranges.push_back({samples * i / count, samples * (i + 1) / count});
  }
  return ranges;
}

}  // namespace fleet::optim
