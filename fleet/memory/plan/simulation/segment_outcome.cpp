// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/simulation/segment_outcome.h"

#include <algorithm>
#include <utility>

#include "fleet/memory/replay/recompute_search.h"

namespace fleet::memory {

using Decision = SegmentOutcome::Decision;

// The ops from `begin` on. Blocks from before it are kept.
struct SegmentSimulation::Graph {
  bool can_replay(int op) const {
    if (op < simulation.outcome_.begin) return false;
    const auto& entry = simulation.op(op);
    return entry.can_replay &&
           (entry.is_view || (*simulation.recomputed_)[static_cast<size_t>(op)]);
  }
  const std::vector<int>& inputs(int op) const { return simulation.op(op).reads; }
  bool is_available(int block) const {
    if (simulation.block(block).made < simulation.outcome_.begin) return true;
    const int entry = simulation.entry_of_[static_cast<size_t>(block)];
    if (entry < 0) return false;
    const auto decision = simulation.outcome_.entries[static_cast<size_t>(entry)].decision;
    return decision == Decision::kHeld || decision == Decision::kRegion;
  }
  Makers makers(int block) const {
    const auto& entry = simulation.block(block);
    return {.producer = entry.made, .writers = &entry.writers};
  }

  const SegmentSimulation& simulation;
};

SegmentSimulation::SegmentSimulation(const StepProfile& profile)
    : profile_(profile),
      entry_of_(profile.blocks.size(), -1),
      last_reader_(profile.blocks.size(), -1),
      selective_of_(profile.ops.size(), -1) {}

SegmentOutcome::Entry& SegmentSimulation::entry_of(int block) {
  auto& place = entry_of_[static_cast<size_t>(block)];
  if (place < 0) {
    place = static_cast<int>(outcome_.entries.size());
    outcome_.entries.push_back({.block = block});
  }
  return outcome_.entries[static_cast<size_t>(place)];
}

// The backward of op `asks` is the first to need it, that of op `until` the last.
void SegmentSimulation::hold(int block, int asks, int until) {
  auto& entry = entry_of(block);
  entry.decision = Decision::kHeld;
  entry.released = std::min(entry.released, until);
  entry.asked = std::max(entry.asked, asks);
}

SegmentOutcome SegmentSimulation::simulate(int begin, int end, bool is_dropped,
                                           const std::vector<char>& recomputed) {
  outcome_ = {.begin = begin, .end = end};
  recomputed_ = &recomputed;
  region_.clear();
  int first_saving = end;
  for (int k = begin; k < end; ++k) {
    if (!op(k).saves.empty()) first_saving = std::min(first_saving, k);
    for (const int b : op(k).saves) save(b, k, is_dropped);
  }
  if (!region_.empty()) replay_region(region_, first_saving);
  for (auto& selective : outcome_.selective) {
    outcome_.seconds += profile_.recompute_overhead;
    selective.height = std::max(height_of(selective), selective.bytes);
    selective_of_[static_cast<size_t>(selective.maker)] = -1;
  }
  list_replayed_blocks();
  find_inputs(is_dropped);
  for (const auto& entry : outcome_.entries) entry_of_[static_cast<size_t>(entry.block)] = -1;
  return std::move(outcome_);
}

void SegmentSimulation::save(int b, int k, bool is_dropped) {
  auto& entry = entry_of(b);
  if (entry.first_save < 0) entry.first_save = k;
  entry.last_save = k;
  const auto& saved = block(b);
  if (saved.made < outcome_.begin || entry.decision == Decision::kHeld) return hold(b, k, k);
  if (entry.decision == Decision::kSelective) {
    const int place = selective_of_[static_cast<size_t>(saved.made)];
    if (!saved.is_mask) outcome_.selective[static_cast<size_t>(place)].starts = k;
    return;
  }
  if (entry.decision == Decision::kRegion) {
    outcome_.starts = k;
    return;
  }
  if ((*recomputed_)[static_cast<size_t>(saved.made)] && select(b, k)) return;
  if (!is_dropped || !op(k).can_replay) return hold(b, k, k);
  entry.decision = Decision::kRegion;
  outcome_.starts = k;
  region_.push_back(b);
  if (saved.is_mask) outcome_.mask_bytes += StepProfile::bits_of(saved);
}

// Whether it can be recomputed selectively.
bool SegmentSimulation::select(int b, int k) {
  const auto& saved = block(b);
  const auto entry = entry_of_[static_cast<size_t>(b)];
  const auto mark = [&] {
    outcome_.entries[static_cast<size_t>(entry)].decision = Decision::kSelective;
  };
  if (saved.is_mask) {  // from its bits
    mark();
    outcome_.seconds += op(saved.made).replay_seconds;
    outcome_.mask_bytes += StepProfile::bits_of(saved);
    outcome_.selective.push_back({.maker = saved.made,
                                  .starts = k,
                                  .bytes = saved.bytes,
                                  .values = {{.block = b, .first_save = k}}});
    return true;
  }
  const Graph graph{*this};
  RecomputeSearch<Graph> search(graph);
  const auto makers = graph.makers(b);
  if (!search.can_recompute(makers, k + 1)) return false;
  search.need(makers, k + 1);
  mark();
  auto& place = selective_of_[static_cast<size_t>(saved.made)];
  if (place < 0) {
    place = static_cast<int>(outcome_.selective.size());
    outcome_.selective.push_back({.maker = saved.made});
  }
  auto& selective = outcome_.selective[static_cast<size_t>(place)];
  selective.starts = std::max(selective.starts, k);
  selective.bytes += saved.bytes;
  selective.values.push_back({.block = b, .first_save = k});
  for (const int o : search.needed()) {
    if (std::ranges::find(selective.ops, o) != selective.ops.end()) continue;
    selective.ops.push_back(o);
    outcome_.seconds += op(o).replay_seconds;
    for (const int r : op(o).reads) {
      if (block(r).made < outcome_.begin) hold(r, k, k);
    }
  }
  return true;
}

// The ops that the segment's replay calls.
void SegmentSimulation::replay_region(const std::vector<int>& blocks, int first_saving) {
  const int begin = outcome_.begin, end = outcome_.end;
  outcome_.seconds += profile_.recompute_overhead;
  std::vector<char> is_replayed(static_cast<size_t>(end - begin), 0);
  std::vector<int> todo;
  const auto need = [&](int op) {
    if (op < begin || std::exchange(is_replayed[static_cast<size_t>(op - begin)], 1)) return;
    todo.push_back(op);
  };
  for (const int b : blocks) {
    need(block(b).made);
    for (const int writer : block(b).writers) {
      if (writer < end) need(writer);
    }
  }
  while (!todo.empty()) {
    const auto& called = op(todo.back());
    todo.pop_back();
    outcome_.seconds += called.replay_seconds;
    for (const int n : called.needs) need(n);
    for (const int r : called.reads) {
      if (block(r).made < begin) hold(r, outcome_.starts, first_saving);
    }
  }
  for (int k = begin; k < end; ++k) {
    if (is_replayed[static_cast<size_t>(k - begin)]) outcome_.replayed.push_back(k);
  }
}

void SegmentSimulation::list_replayed_blocks() {
  for (const int k : outcome_.replayed) {
    for (const int r : op(k).reads) last_reader_[static_cast<size_t>(r)] = k;
  }
  for (const int k : outcome_.replayed) {
    for (const int b : op(k).makes) {
      const int entry = entry_of_[static_cast<size_t>(b)];
      const bool stays =
          entry >= 0 && outcome_.entries[static_cast<size_t>(entry)].decision == Decision::kRegion;
      const int until =
          stays ? outcome_.end : std::max(last_reader_[static_cast<size_t>(b)], k) + 1;
      outcome_.replayed_blocks.push_back({.block = b, .made = k, .until = until});
    }
  }
  for (const int k : outcome_.replayed) {
    for (const int r : op(k).reads) last_reader_[static_cast<size_t>(r)] = -1;
  }
}

void SegmentSimulation::find_inputs(bool is_dropped) {
  for (int k = outcome_.begin; k < outcome_.end; ++k) {
    const bool may_be_called_again =
        is_dropped || op(k).is_view || (*recomputed_)[static_cast<size_t>(k)];
    if (!op(k).can_replay || !may_be_called_again) continue;
    for (const int b : op(k).reads) {
      if (block(b).made >= outcome_.begin) continue;
      if (std::exchange(last_reader_[static_cast<size_t>(b)], k) < 0) outcome_.inputs.push_back(b);
    }
  }
  for (const int b : outcome_.inputs) last_reader_[static_cast<size_t>(b)] = -1;
}

// What the replay makes is freed after its last reader, but for the values.
int64_t SegmentSimulation::height_of(const SegmentOutcome::Selective& selective) {
  auto ops = selective.ops;
  std::ranges::sort(ops);
  for (const int k : ops) {
    for (const int r : op(k).reads) last_reader_[static_cast<size_t>(r)] = k;
  }
  const auto is_wanted = [&](int b) {
    return std::ranges::find(selective.values, b, &SegmentOutcome::Selective::Value::block) !=
           selective.values.end();
  };
  std::vector<int> made;
  int64_t live = 0, height = 0;
  for (const int k : ops) {
    height = std::max(height, live + op(k).made_bytes + op(k).replay_transient());
    for (const int b : op(k).makes) {
      if (!is_wanted(b) && last_reader_[static_cast<size_t>(b)] <= k) continue;
      live += block(b).bytes;
      if (!is_wanted(b)) made.push_back(b);
    }
    std::erase_if(made, [&](int b) {
      const bool is_done = last_reader_[static_cast<size_t>(b)] == k;
      if (is_done) live -= block(b).bytes;
      return is_done;
    });
  }
  for (const int k : ops) {
    for (const int r : op(k).reads) last_reader_[static_cast<size_t>(r)] = -1;
  }
  return height;
}

}  // namespace fleet::memory
