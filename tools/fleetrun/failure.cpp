// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/failure.h"

#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error("fleetrun", format("a report of a failure in the store cannot be read: {}", why),
              "run the same version of fleetrun on every node");
}

int whole_number(const nlohmann::json& json, const char* key) {
  const auto& value = json.at(key);
  const bool is_one = value.is_number_integer() && std::in_range<int>(value.get<int64_t>());
  if (!is_one) refuse(format("its {} is no whole number", key));
  return value;
}

}  // namespace

std::string Failure::to_json() const {
  return nlohmann::json{{"node", node},
                        {"what", what},
                        {"exit_code", exit_code},
                        {"crashed", crashed},
                        {"caused_by_peer", caused_by_peer},
                        {"restartable", restartable},
                        {"stopped_by_user", stopped_by_user},
                        {"log", log},
                        {"tail", tail},
                        {"shown", shown}}  // A program may print bytes that are not UTF-8.
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Failure Failure::from_json(const std::string& text) try {
  const auto json = nlohmann::json::parse(text);
  return {.node = whole_number(json, "node"),
          .what = json.at("what"),
          .exit_code = whole_number(json, "exit_code"),
          .crashed = json.at("crashed"),
          .caused_by_peer = json.at("caused_by_peer"),
          .restartable = json.at("restartable"),
          .stopped_by_user = json.at("stopped_by_user"),
          .log = json.at("log"),
          .tail = json.at("tail"),
          .shown = json.at("shown")};
} catch (const nlohmann::json::exception& error) {
  refuse(error.what());
}

const Failure& first_cause(const std::vector<Failure>& failures) {
  const std::array<bool (*)(const Failure&), 4> by_weight = {
      [](const Failure& failure) { return failure.stopped_by_user && !failure.caused_by_peer; },
      [](const Failure& failure) { return failure.stopped_by_user; },
      [](const Failure& failure) { return failure.crashed; },
      [](const Failure& failure) { return !failure.caused_by_peer; },
  };
  for (const auto is_cause : by_weight)
    for (const auto& failure : failures)
      if (is_cause(failure)) return failure;
  return failures.front();
}

bool names_another_rank(const std::string& error) {
  return error.starts_with("error: [comm] ") || error.starts_with("error: [snapshot] rank ");
}

std::string explain(const Failure& failure, int own_node, size_t other_failures) {
  std::string text = format("[fleetrun] {}", failure.what);
  if (other_failures > 0)
    text += format("\n  {} more rank{} failed right after, probably because of it", other_failures,
                   other_failures == 1 ? "" : "s");
  const auto where = failure.node == own_node ? "" : format(" on node {}", failure.node);
  const bool seen = failure.shown && failure.node == own_node;
  if (!failure.tail.empty() && !seen) {
    text += format("\n  the end of {}{}:", failure.log, where);
    for (const auto& line : failure.tail) text += "\n    | " + line;
  } else if (!failure.log.empty() && failure.tail.empty()) {
    text += format("\n  it printed nothing; its log is {}{}", failure.log, where);
  } else if (!failure.log.empty()) {
    text += format("\n  its output is {} {}{}", seen ? "above and in" : "in", failure.log, where);
  }
  return text;
}

}  // namespace fleet::launch
