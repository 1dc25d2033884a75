// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/batch_arithmetic.h"

#include <algorithm>

#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"

namespace fleet {
namespace {

std::string ranks_text(int64_t ranks) { return plural(ranks, "rank"); }

// "4 micro-batches of 8", "2 micro-batches of 6 to 9"
std::string micro_batches_text(const WindowSamples& own) {
  auto text =
      format("{} of {}", plural(own.micro_batches, "micro-batch", "micro-batches"), own.smallest);
  if (own.largest > own.smallest) {
    text += format(" {} {}", own.largest == own.smallest + 1 ? "or" : "to", own.largest);
  }
  return text;
}

}  // namespace

void WindowSamples::add(int64_t samples) {
  smallest = micro_batches == 0 ? samples : std::min(smallest, samples);
  largest = std::max(largest, samples);
  sum += samples;
  is_known &= samples > 0;
  ++micro_batches;
}

std::string BatchArithmetic::product() const {
  const bool is_even = own.smallest == own.largest;
  if (is_local) {
    auto line = std::string("batch of each rank = micro-batch x ");
    if (own.is_known && is_even) {
      line = format("batch {} of this rank = micro-batch {} x ", own.sum, own.smallest);
    }
    line = own.is_known && !is_even
               ? format("batch {} of this rank = {}", own.sum, micro_batches_text(own))
               : line + format("{} accumulated", own.micro_batches);
    return line + format("; with local SGD each of {} updates with its own", ranks_text(ranks));
  }
  if (!own.is_known || !global_samples) {
    return format("global batch = micro-batch x {} accumulated x {} = {}", own.micro_batches,
                  ranks_text(ranks),
                  plural(own.micro_batches * ranks, "micro-batch", "micro-batches"));
  }
  if (is_even && own.sum * ranks == *global_samples) {
    return format("global batch {} = micro-batch {} x {} accumulated x {}", *global_samples,
                  own.smallest, own.micro_batches, ranks_text(ranks));
  }
  return format("global batch {} on {}; on this one {} = {}", *global_samples, ranks_text(ranks),
                own.sum, micro_batches_text(own));
}

std::string BatchArithmetic::text() const {
  switch (form) {
    case BatchForm::kSplit:
      if (k_steps == 1) break;
      return product() +
             format(
                 "; k_steps {0} splits the batch of {1} on each rank (in the guide N becomes "
                 "{0} N: use minimize(closure), or {0} times the batch size)",
                 k_steps, own.sum);
    case BatchForm::kCalls:
      if (k_steps == 1) break;
      return product() +
             format(
                 "; k_steps {0} accumulates {0} calls of minimize(closure): a micro-batch of N "
                 "samples makes a batch of {0} N on each rank, as in the guide",
                 k_steps);
    case BatchForm::kBackward:
      if (own.micro_batches == 1) break;
      return product() +
             format(
                 "; step() merges {0} calls of backward(loss): micro-batches of N samples make "
                 "a batch of {0} N on each rank, as in the guide",
                 own.micro_batches);
  }
  return product();
}

}  // namespace fleet
