// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "fleet/comm/communicator.h"
#include "fleet/ops/random_scope.h"
#include "fleet/train/micro_batch.h"

namespace fleet {

/// Where the samples of this rank lie in the global batch, by which random ops number them: no two
/// samples of an update have one number, and ranks that split a batch see the numbers of one rank.
///
/// Ranks tell each other how many samples they have in the first update, and again in the update
/// after one in which some rank had another number of them than before: a few bytes each time. In
/// that update itself such a rank takes random numbers of its own. So does every rank where the
/// others' numbers of samples are not known: calls of `minimize(closure)` and `backward`, and local
/// SGD from its first update on.
///
///   places.open(batch.size(), /*is_local=*/false);
///   const auto position = places.position(micro_batch, 0);   // and forward, backward, reduce
///   places.close(reduced.is_resized);
class SampleOffsets {
 public:
  /// What a snapshot keeps.
  struct State {
    int64_t samples = -1;  // of this rank when places were agreed on; -1: never
    int64_t first = -1;    // place of the first of them; -1: to be agreed on again
  };

  explicit SampleOffsets(std::shared_ptr<comm::Communicator> comm);

  /// Before an update by a batch of so many samples, which all ranks make; `is_local`: each by
  /// itself.
  void open(int64_t samples, bool is_local);
  /// This rank has another number of samples than was agreed on.
  bool is_resized() const { return is_resized_; }
  /// After it; `is_resized`: some rank was.
  void close(bool is_resized);

  /// Of a micro-batch's forward, but for seed and update. `window_samples`: that came before it,
  /// where calls tell none.
  ops::RandomScope::Position position(const MicroBatch& next, int64_t window_samples) const;

  State state() const { return {state_.samples, must_agree_ ? -1 : state_.first}; }
  void set_state(const State& state);

 private:
  std::shared_ptr<comm::Communicator> comm_;
  State state_;
  bool must_agree_ = true;
  bool is_resized_ = false;
  bool is_placed_ = false;  // in this update
};

}  // namespace fleet
