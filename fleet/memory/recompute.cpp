// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/recompute.h"

#include <optional>

#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"

namespace fleet::memory {

struct RecomputeScope::State {
  KeepAll keep_all;
  std::optional<TapeScope> own;  // if no tape records this thread yet
  Tape* tape = nullptr;
};

RecomputeScope::RecomputeScope() : state_(std::make_unique<State>()) {
  state_->tape = Tape::current();
  if (!state_->tape) state_->tape = &state_->own.emplace(state_->keep_all).tape();
  state_->tape->open_region();
}

RecomputeScope::~RecomputeScope() {
  if (state_->tape) state_->tape->close_region(TapePolicy::Treatment::kKeep);
}

void RecomputeScope::finish() {
  auto* const tape = std::exchange(state_->tape, nullptr);
  tape->close_region(TapePolicy::Treatment::kDrop);
}

}  // namespace fleet::memory
