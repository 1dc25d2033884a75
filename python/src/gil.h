// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "bindings.h"
#include "output.h"

namespace fleet::python {

/// Around work in C++ that takes long: other Python threads run. Lines that Fleet prints meanwhile
/// reach sys.stdout at its end, where that is not the process's own.
class ReleaseGil {
 public:
  ReleaseGil() {
    look_at_streams();
    released_.emplace();
  }
  ~ReleaseGil() {
    released_.reset();
    flush_lines();
  }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  std::optional<py::gil_scoped_release> released_;
};

using Release = py::call_guard<ReleaseGil>;

/// A Python object that C++ may drop without the GIL. Copies are to be looked at with it.
class SharedObject {
 public:
  explicit SharedObject(py::object object)
      : object_(new py::object(std::move(object)), [](const py::object* held) {
          const py::gil_scoped_acquire gil;
          delete held;
        }) {}
  const py::object& operator*() const { return *object_; }
  const py::object* operator->() const { return object_.get(); }

 private:
  std::shared_ptr<const py::object> object_;
};

}  // namespace fleet::python
