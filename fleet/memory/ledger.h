#pragma once

#include <vector>

namespace fleet::memory {

/// Which op made a value, and which ops wrote to its memory, of one forward.
struct Ledger {
  struct Value {
    int producer = -1;  // op; -1: it came from outside
    int memory = -1;
  };
  std::vector<Value> values;
  std::vector<std::vector<int>> writers;  // by memory, in order

  const Value& value(int number) const { return values[static_cast<size_t>(number)]; }
  /// Of a memory that is known.
  const std::vector<int>& writers_of(int memory) const {
    return writers[static_cast<size_t>(memory)];
  }
};

}  // namespace fleet::memory
