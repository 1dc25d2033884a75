#include "fleet/memory/replay_need.h"

#include <algorithm>

#include "fleet/core/error.h"
#include "fleet/memory/region.h"

namespace fleet::memory {
namespace {

uint64_t key(int value, uint32_t version) {
  return (static_cast<uint64_t>(value) << 32U) | version;
}

}  // namespace

void ReplayNeed::at_hand(const KeptValue& kept) {
  const auto& origin = kept.origin();
  if (origin.value >= 0 && !origin.is_view) at_hand_.emplace(key(origin.value, origin.version));
}

bool ReplayNeed::possible(const KeptValue& kept) {
  const auto& origin = kept.origin();
  if (origin.value >= 0) return possible_value(origin.value, origin.version, origin.time);
  return origin.op >= 0 && possible_op(origin.op);
}

void ReplayNeed::mark(const KeptValue& kept) {
  const auto& origin = kept.origin();
  if (origin.value >= 0) {
    mark_makers(origin.value, origin.time);
  } else {
    mark_op(origin.op);
  }
}

bool ReplayNeed::is_kept(const OpInput& input) const {
  return is_kept_elsewhere(input) || is_at_hand(input.value, input.version);
}

bool ReplayNeed::is_kept_elsewhere(const OpInput& input) const {
  if (!input.kept) return false;
  const auto owner = input.kept->region();
  // An inner region gave it up and is gone: it is for this one to make.
  if (!owner) return input.kept->is_here() || input.kept->is_away();
  return !region_.contains(owner.get());
}

bool ReplayNeed::is_at_hand(int value, uint32_t version) const {
  return at_hand_.contains(key(value, version));
}

int ReplayNeed::position(int op) const {
  const auto place =
      std::ranges::lower_bound(records_, op, {}, [](const auto& record) { return record->index; });
  if (place == records_.end() || (*place)->index != op) return -1;
  return static_cast<int>(place - records_.begin());
}

bool ReplayNeed::possible_value(int value, uint32_t version, int time) {
  if (is_at_hand(value, version)) return true;
  const auto& entry = ledger_.value(value);
  if (entry.producer < 0 || !possible_op(entry.producer)) return false;
  return entry.memory < 0 || std::ranges::all_of(ledger_.writers_of(entry.memory), [&](int writer) {
           return writer >= time || possible_op(writer);
         });
}

bool ReplayNeed::possible_op(int op) {
  const int at = position(op);
  if (at < 0) return false;
  auto& state = state_[static_cast<size_t>(at)];
  if (state != State::kUnknown) return state != State::kImpossible;
  const auto& record = *records_[static_cast<size_t>(at)];
  const bool possible =
      record.can_replay && std::ranges::all_of(record.inputs, [&](const OpInput& input) {
        return is_kept(input) || possible_value(input.value, input.version, record.index);
      });
  state = possible ? State::kPossible : State::kImpossible;
  return possible;
}

void ReplayNeed::mark_makers(int value, int time) {
  const auto& entry = ledger_.value(value);
  mark_op(entry.producer);
  if (entry.memory < 0) return;
  for (const int writer : ledger_.writers_of(entry.memory)) {
    if (writer < time) mark_op(writer);
  }
}

void ReplayNeed::mark_op(int op) {
  const int at = position(op);
  FLEET_ASSERT(at >= 0, "an op that a replay needs was not kept");
  auto& state = state_[static_cast<size_t>(at)];
  if (state == State::kNeeded) return;
  state = State::kNeeded;
  const auto& record = *records_[static_cast<size_t>(at)];
  for (const auto& input : record.inputs) {
    if (!is_kept(input)) mark_makers(input.value, record.index);
  }
}

}  // namespace fleet::memory
