// SPDX-License-Identifier: Apache-2.0
// Strategy files: read, checked, shown, written and read again.

#include "fleet/train/distributed_strategy.h"
#include "fleet/train/strategy_check.h"

#include "fuzz/target.h"

namespace fleet::fuzz {
namespace {

void run(Bytes bytes) {
  DistributedStrategy strategy;
  if (!accepts([&] { strategy = DistributedStrategy::from_json(std::string(text_of(bytes))); }))
    return;
  require(out_of_limits(strategy).empty(), "what is accepted is within its limits");
  require(DistributedStrategy::from_json(strategy.to_json()) == strategy,
          "written again it is the same");
  require(!strategy.overview().empty(), "it can be shown");
  accepts([&] { check(strategy, {.world_size = 2, .optimizer_name = "Momentum"}); });
}

const Target target("strategy_json", run);

}  // namespace
}  // namespace fleet::fuzz
