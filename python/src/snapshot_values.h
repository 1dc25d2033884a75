// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "fleet/snapshot/snapshot_value.h"

#include "bindings.h"

namespace fleet::python {

/// The dictionary of a program's own values, with a copy in C++ that snapshots read and write:
/// numbers, texts, lists of numbers and tensors, which are read from the dictionary and set in it;
/// and objects with state_dict and load_state_dict, such as a scheduler. Types stay those that
/// values had at first.
class SnapshotValues {
 public:
  /// With the GIL, as are the others. `values` may be None.
  explicit SnapshotValues(const py::object& values);

  /// What C++ snapshots keep; points into this.
  std::vector<SnapshotValue> list();
  /// From the dictionary, before a snapshot.
  void read();
  /// To the dictionary and its objects, after a snapshot was loaded.
  void write();

 private:
  using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                             std::vector<double>, torch::Tensor>;
  struct Entry {
    std::string name;
    Value value;
    bool has_state = false;   // the value is what its state_dict() returned
    bool is_checked = false;  // that its bytes can be read again
  };

  static Value value_of(const std::string& name, const py::object& object);
  static bool has_state(const py::object& object);
  void read(Entry& entry);

  py::object values_;
  std::deque<Entry> entries_;  // which stay where they are
};

}  // namespace fleet::python
