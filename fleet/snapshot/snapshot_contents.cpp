// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_contents.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

bool is_fit_for_a_file(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return (std::isalnum(c) != 0 && c < 128) || c == '_' || c == '-';
  });
}

}  // namespace

SnapshotContents SnapshotContents::of(DistributedOptimizer& optimizer, const DataPosition& data,
                                      std::vector<SnapshotValue> values) {
  return {.optimizers = {{"", &optimizer}}, .data = data, .values = std::move(values)};
}

const std::shared_ptr<comm::Communicator>& SnapshotContents::comm() const {
  return optimizers.front().optimizer->comm();
}

int64_t SnapshotContents::step() const {
  int64_t sum = 0;
  for (const auto& item : optimizers) sum += item.optimizer->attempts();
  return sum;
}

bool SnapshotContents::is_in_window() const {
  return std::ranges::any_of(optimizers, [](const auto& o) { return o.optimizer->is_in_window(); });
}

bool SnapshotContents::is_stopping() const {
  return std::ranges::any_of(optimizers, [](const auto& o) { return o.optimizer->is_stopping(); });
}

bool SnapshotContents::has_local_sgd() const {
  return std::ranges::any_of(optimizers,
                             [](const auto& o) { return o.optimizer->local_sgd() != nullptr; });
}

std::string SnapshotContents::progress() const {
  if (!has_names()) return format("update {}", optimizers.front().optimizer->updates());
  std::string text;
  for (const auto& [name, optimizer] : optimizers) {
    text += format("{}{}'s update {}", text.empty() ? "" : ", ", name, optimizer->updates());
  }
  return text;
}

void SnapshotContents::check() const {
  std::vector<std::string> problems;
  const bool is_one_without_name = optimizers.size() == 1 && !has_names() && models.empty();
  std::set<std::string> files;
  const auto check_file_name = [&](const std::string& name, std::string_view kind) {
    if (!is_fit_for_a_file(name)) {
      problems.push_back(
          format("the name '{}' of {} is not made of letters, digits, '_' and '-'", name, kind));
    } else if (!files.insert(name).second) {
      problems.push_back(format("the name '{}' is taken twice", name));
    }
  };
  if (optimizers.empty()) problems.emplace_back("there is no optimizer");
  for (const auto& [name, optimizer] : optimizers) {
    if (!is_one_without_name) check_file_name(name, "an optimizer");
    if (optimizer == nullptr) {
      problems.push_back(format("optimizer '{}' is null", name));
    } else if (const auto* first = optimizers.front().optimizer;
               first && (optimizer->comm()->size() != first->comm()->size() ||
                         optimizer->comm()->rank() != first->comm()->rank())) {
      problems.push_back(format("optimizer '{}' is of {} ranks, and '{}' of {}", name,
                                optimizer->comm()->size(), optimizers.front().name,
                                first->comm()->size()));
    }
  }
  for (const auto& item : models) check_file_name(item.name, "a model");
  std::set<std::string> names;
  for (const auto& value : values) {
    if (value.name().empty()) problems.emplace_back("a value has no name");
    if (value.is_null()) problems.push_back(format("value '{}' is null", value.name()));
    if (!names.insert(value.name()).second) {
      problems.push_back(format("the value '{}' is given twice", value.name()));
    }
  }
  if (problems.empty()) return;
  throw Error::all("snapshot", "a snapshot cannot be made of this:", problems,
                   "give each optimizer, model and value a name of its own");
}

}  // namespace fleet
