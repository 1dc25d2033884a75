// SPDX-License-Identifier: Apache-2.0
// What launchers read from the store: why an attempt has ended.

#include "fuzz/target.h"
#include "tools/fleetrun/failure.h"

namespace fleet::fuzz {
namespace {

using launch::Failure;

void run(Bytes bytes) {
  Failure failure;
  if (!accepts([&] { failure = Failure::from_json(std::string(text_of(bytes))); })) return;
  const auto text = failure.to_json();
  require(Failure::from_json(text).to_json() == text, "written again it is the same");
  require(!launch::explain(launch::first_cause({failure, failure}), 0, 1).empty(),
          "it can be explained");
}

const Target target("node_messages", run);

}  // namespace
}  // namespace fleet::fuzz
