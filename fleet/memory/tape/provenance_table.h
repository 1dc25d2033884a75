// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace fleet::memory {

/// The ops that determine what a value holds: the one that made it, and those that wrote to its
/// storage, in order.
struct Makers {
  int producer = -1;                          // -1: it came from outside
  const std::vector<int>* writers = nullptr;  // null: none
};

/// Which op made a value, and which ops wrote to its storage, of one forward.
struct ProvenanceTable {
  struct Value {
    int producer = -1;  // op; -1: it came from outside
    int storage = -1;
  };
  std::vector<Value> values;
  std::vector<std::vector<int>> writers;  // by storage id, in order

  const Value& value(int number) const { return values[static_cast<size_t>(number)]; }
  const std::vector<int>& writers_of(int storage) const {
    return writers[static_cast<size_t>(storage)];
  }
  Makers makers_of(int number) const {
    const auto& entry = value(number);
    return {.producer = entry.producer,
            .writers = entry.storage < 0 ? nullptr : &writers_of(entry.storage)};
  }
};

}  // namespace fleet::memory
