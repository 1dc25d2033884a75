#include "tools/fleetrun/failure.h"

#include <nlohmann/json.hpp>

#include "fleet/core/format.h"

namespace fleet::launch {

std::string Failure::to_json() const {
  return nlohmann::json{{"node", node},
                        {"what", what},
                        {"exit_code", exit_code},
                        {"crashed", crashed},
                        {"restartable", restartable},
                        {"stopped_by_user", stopped_by_user},
                        {"log", log},
                        {"tail", tail},
                        {"echoed", echoed}}  // A program may print bytes that are not UTF-8.
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Failure Failure::from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {.node = json.at("node"),
          .what = json.at("what"),
          .exit_code = json.at("exit_code"),
          .crashed = json.at("crashed"),
          .restartable = json.at("restartable"),
          .stopped_by_user = json.at("stopped_by_user"),
          .log = json.at("log"),
          .tail = json.at("tail"),
          .echoed = json.at("echoed")};
}

const Failure& first_cause(const std::vector<Failure>& failures) {
  for (const auto& failure : failures)
    if (failure.stopped_by_user) return failure;
  for (const auto& failure : failures)
    if (failure.crashed) return failure;
  return failures.front();
}

std::string explain(const Failure& failure, int own_node, size_t other_failures) {
  std::string text = format("[fleetrun] {}", failure.what);
  if (other_failures > 0)
    text += format("\n  {} more rank{} failed right after, probably because of it", other_failures,
                   other_failures == 1 ? "" : "s");
  const auto where = failure.node == own_node ? "" : format(" on node {}", failure.node);
  const bool seen = failure.echoed && failure.node == own_node;
  if (!failure.tail.empty() && !seen) {
    text += format("\n  the end of {}{}:", failure.log, where);
    for (const auto& line : failure.tail) text += "\n    | " + line;
  } else if (!failure.log.empty()) {
    text += format("\n  its output is {} {}{}", seen ? "above and in" : "in", failure.log, where);
  }
  return text;
}

}  // namespace fleet::launch
