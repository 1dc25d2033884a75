// SPDX-License-Identifier: Apache-2.0
// What launchers read from the store: why an attempt has ended, and what a node says of itself. The
// first byte says which of them the rest is.

#include "fuzz/target.h"
#include "tools/fleetrun/failure.h"
#include "tools/fleetrun/nodes/node_record.h"

namespace fleet::fuzz {
namespace {

using launch::Failure;
using launch::NodeRecord;

void failure(const std::string& read) {
  Failure failure;
  if (!accepts([&] { failure = Failure::from_json(read); })) return;
  const auto text = failure.to_json();
  require(Failure::from_json(text).to_json() == text, "written again it is the same");
  require(!launch::explain(launch::first_cause({failure, failure}), 0, 1).empty(),
          "it can be explained");
}

void node(const std::string& read) {
  NodeRecord record;
  if (!accepts([&] { record = NodeRecord::from_json(read, 0); })) return;
  require(record.nodes >= 1 && record.max_restarts >= 0, "numbers are within limits");
  require(4 * record.node.endpoints.size() <= 4 + 2 * read.size(), "a rank takes room in the text");
  require(NodeRecord::from_json(record.to_json(), 0).nodes == record.nodes, "it is read again");
}

void run(Bytes bytes) {
  if (bytes.empty()) return;
  (bytes[0] % 2 == 0 ? failure : node)(std::string(text_of(bytes.subspan(1))));
}

const Target target("node_messages", run);

}  // namespace
}  // namespace fleet::fuzz
