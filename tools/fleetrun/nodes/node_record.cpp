// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/nodes/node_record.h"

#include <optional>

#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::launch {
namespace {

constexpr size_t kMaxEndpoints = 65536;  // of one node
constexpr int64_t kMaxNodes = 65536, kMaxRestarts = 1'000'000;

std::optional<int> number_within(const nlohmann::json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return std::nullopt;  // the library would round any other
  const auto number = value.get<int64_t>();
  if (number < least || number > most) return std::nullopt;
  return static_cast<int>(number);
}

std::optional<NodeRecord> parsed(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  const auto nodes = number_within(json.at("nodes"), 1, kMaxNodes);
  const auto max_restarts = number_within(json.at("max_restarts"), 0, kMaxRestarts);
  const auto& endpoints = json.at("endpoints");
  if (!nodes || !max_restarts || !endpoints.is_array()) return std::nullopt;
  if (endpoints.empty() || endpoints.size() > kMaxEndpoints) return std::nullopt;
  NodeRecord record{{printable(json.at("address").get<std::string>()), {}}, *nodes, *max_restarts};
  for (const auto& endpoint : endpoints)
    record.node.endpoints.push_back(printable(endpoint.get<std::string>()));
  return record;
}

}  // namespace

std::string NodeRecord::to_json() const {
  return nlohmann::json{{"address", node.address},
                        {"endpoints", node.endpoints},
                        {"nodes", nodes},
                        {"max_restarts", max_restarts}}
      .dump();
}

NodeRecord NodeRecord::from_json(const std::string& text, int node) {
  try {
    if (auto record = parsed(text)) return *record;
  } catch (const nlohmann::json::exception&) {  // NOLINT: reported below
  }
  throw Error("fleetrun",
              format("what node {} says of itself cannot be read: '{}'", node, printable(text, 80)),
              "use the same version of fleetrun on every node");
}

}  // namespace fleet::launch
