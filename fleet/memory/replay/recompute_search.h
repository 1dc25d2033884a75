// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fleet/memory/tape/provenance_table.h"

namespace fleet::memory {

/// Answers "can this value be recomputed, and by which ops". The tape, a region's replay, selective
/// recomputation and the plan simulation all ask it; they differ in the graph that they show:
///
///   struct Graph {
///     bool can_replay(int op);                    // false for an op that is not part of it
///     const std::vector<Input>& inputs(int op);
///     bool is_available(const Input& input);      // no op has to be called for it
///     Makers makers(const Input& input);
///   };
///
/// A value is recomputed by its producer and by the ops that wrote to its storage before it was
/// used; each of them needs its own inputs in turn. All of these ops were called before the use, so
/// the search ends. Each op is looked at once: what is available must not change meanwhile.
template <typename Graph>
class RecomputeSearch {
 public:
  explicit RecomputeSearch(Graph graph) : graph_(std::move(graph)) {}

  bool can_call(int op) {
    if (!graph_.can_replay(op)) return false;
    const auto [place, is_new] = states_.try_emplace(op, State::kImpossible);
    auto& state = place->second;
    if (!is_new) return state != State::kImpossible;
    const bool possible = std::ranges::all_of(graph_.inputs(op), [&](const auto& input) {
      return graph_.is_available(input) || can_recompute(graph_.makers(input), op);
    });
    if (possible) state = State::kPossible;
    return possible;
  }

  /// As the value is before op `time` is called.
  bool can_recompute(const Makers& makers, int time) {
    return can_call(makers.producer) &&
           (!makers.writers || std::ranges::all_of(*makers.writers, [&](int writer) {
             return writer >= time || can_call(writer);
           }));
  }

  /// Adds the ops that must be called to those that are needed.
  void need(int op) {
    std::vector<int> todo;
    find(op, todo);
    mark_inputs(todo);
  }
  void need(const Makers& makers, int time) {
    std::vector<int> todo;
    find(makers, time, todo);
    mark_inputs(todo);
  }

  bool is_needed(int op) const {
    const auto place = states_.find(op);
    return place != states_.end() && place->second == State::kNeeded;
  }
  /// In the order in which they were found.
  const std::vector<int>& needed() const { return needed_; }

  /// Forgets everything.
  void clear() {
    states_.clear();
    needed_.clear();
  }

 private:
  enum class State : char { kImpossible, kPossible, kNeeded };

  void find(int op, std::vector<int>& todo) {
    auto& state = states_[op];
    if (state == State::kNeeded) return;
    state = State::kNeeded;
    needed_.push_back(op);
    todo.push_back(op);
  }
  void find(const Makers& makers, int time, std::vector<int>& todo) {
    find(makers.producer, todo);
    if (!makers.writers) return;
    for (const int writer : *makers.writers) {
      if (writer < time) find(writer, todo);
    }
  }
  // Without recursion: a chain of ops may be longer than a stack is deep.
  void mark_inputs(std::vector<int>& todo) {
    while (!todo.empty()) {
      const int op = todo.back();
      todo.pop_back();
      for (const auto& input : graph_.inputs(op)) {
        if (!graph_.is_available(input)) find(graph_.makers(input), op, todo);
      }
    }
  }

  Graph graph_;
  std::unordered_map<int, State> states_;  // by op
  std::vector<int> needed_;
};

}  // namespace fleet::memory
