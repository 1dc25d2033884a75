// SPDX-License-Identifier: Apache-2.0
#include "fleet/metrics/step_line.h"

#include "fleet/core/text/format.h"

namespace fleet {
namespace {

// A clock too coarse for the step must not print "inf".
double per_second(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

std::string step_line(const StepFigures& figures) {
  const auto steps = static_cast<double>(figures.step + 1);
  return format(
      "worker_index: {}, step{} cost = {:f}, total time cost = {:f}, step per second: {:f}, "
      "speed: {:f}",
      figures.worker_index, figures.step, figures.cost, figures.total_time_s,
      per_second(steps, figures.total_time_s), per_second(1, figures.step_time_s));
}

std::string batch_line(const BatchFigures& figures) {
  return format("[Epoch {}, batch {}] loss: {:.5f}, acc1: {:.5f}, acc5: {:.5f}", figures.epoch,
                figures.batch, figures.loss, figures.acc1, figures.acc5);
}

}  // namespace fleet
