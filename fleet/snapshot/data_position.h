// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "fleet/core/options/options_json.h"
#include "fleet/data/sharded_sampler.h"

namespace fleet {

/// Where a training is in its data, for a snapshot: of anything with `state()`, a struct that has
/// `fields_of`, an `epoch` and a `next_update`, and with `restore(state)`. What it is made of must
/// outlive it.
///
///   fleet::DataLoader train(...);
///   fleet::Snapshots snapshots(optimizer, config.snapshots, train);
class DataPosition {
 public:
  /// None: only model and optimizer are kept.
  DataPosition() = default;

  template <typename Data>
  requires Reflected<decltype(std::declval<Data&>().state())> DataPosition(Data& data)  // NOLINT
      : write_([&data] { return write_json(data.state(), decltype(data.state()){}); }),
        restore_([&data](const std::string& text, const std::string& source, bool other_ranks) {
          auto state = decltype(data.state()){};
          read_json(state, text, source);
          if constexpr (std::is_same_v<decltype(state), SamplerState>) {
            if (other_ranks) state = in_batches_of(state, data.state().global_batch);
          }
          data.restore(state);
        }),
        epoch_([&data] { return data.state().epoch; }),
        next_update_([&data] { return data.state().next_update; }) {}

  bool is_known() const { return write_ != nullptr; }
  /// That the next batch is of; 0 for no data.
  int64_t epoch() const { return is_known() ? epoch_() : 0; }
  /// All of an epoch's batches have been handed out, or none.
  bool is_at_epoch_start() const { return is_known() && next_update_() == 0; }
  /// How many of the epoch's batches have been handed out.
  int64_t next_update() const { return is_known() ? next_update_() : 0; }

  std::string to_json() const { return write_(); }
  /// `other_ranks`: it was written by another number of them.
  void restore(const std::string& text, const std::string& source, bool other_ranks) const {
    restore_(text, source, other_ranks);
  }

 private:
  std::function<std::string()> write_;
  std::function<void(const std::string&, const std::string&, bool)> restore_;
  std::function<int64_t()> epoch_;
  std::function<int64_t()> next_update_;
};

}  // namespace fleet
