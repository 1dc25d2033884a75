// SPDX-License-Identifier: Apache-2.0
#include "snapshot_values.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <type_traits>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "state_bytes.h"

namespace fleet::python {
namespace {

bool is_whole(const py::handle& object) {
  return py::hasattr(object, "__index__") && !THPVariable_Check(object.ptr());
}

bool is_number(const py::handle& object) {
  return is_whole(object) || (py::hasattr(object, "__float__") && !THPVariable_Check(object.ptr()));
}

double number_of(const py::handle& object) {
  return py::float_(py::reinterpret_borrow<py::object>(object)).cast<double>();
}

int64_t whole_of(const py::handle& object) {
  return py::int_(py::reinterpret_borrow<py::object>(object)).cast<int64_t>();
}

}  // namespace

SnapshotValues::SnapshotValues(const py::object& values) : values_(values) {
  if (values.is_none()) return;
  if (!py::isinstance<py::dict>(values)) {
    throw UsageError("snapshot",
                     format("values= is {}, and a dictionary is expected", type_name(values)),
                     "values = {\"best_loss\": 1e9, \"scheduler\": scheduler}, and values[...] = "
                     "... in the loop");
  }
  for (const auto& [key, object] : values.cast<py::dict>()) {
    const auto name = py::str(key).cast<std::string>();
    const auto value = py::reinterpret_borrow<py::object>(object);
    Entry entry{.name = name, .has_state = has_state(value)};
    entry.value = entry.has_state ? Value(torch::Tensor()) : value_of(name, value);
    entries_.push_back(std::move(entry));
  }
}

bool SnapshotValues::has_state(const py::object& object) {
  return py::hasattr(object, "state_dict") && py::hasattr(object, "load_state_dict");
}

SnapshotValues::Value SnapshotValues::value_of(const std::string& name, const py::object& object) {
  if (py::isinstance<py::bool_>(object)) return object.cast<bool>();
  if (py::isinstance<py::str>(object)) return object.cast<std::string>();
  if (THPVariable_Check(object.ptr())) return THPVariable_Unpack(object.ptr()).detach();
  if (is_whole(object)) return whole_of(object);
  if (is_number(object)) return number_of(object);
  if (py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object)) {
    const auto list = object.cast<py::sequence>();
    const auto all = [&](auto&& fits) {
      return std::all_of(list.begin(), list.end(), [&](const auto& item) { return fits(item); });
    };
    if (list.size() > 0 && all(is_whole)) {
      std::vector<int64_t> numbers;
      for (const auto& item : list) numbers.push_back(whole_of(item));
      return numbers;
    }
    if (all(is_number)) {
      std::vector<double> numbers;
      for (const auto& item : list) numbers.push_back(number_of(item));
      return numbers;
    }
  }
  throw UsageError(
      "snapshot",
      format("the value '{}' is {}, which snapshots do not keep", name, type_name(object)),
      "give a number, a text, a list of numbers, a tensor, or an object with "
      "state_dict and load_state_dict");
}

std::vector<SnapshotValue> SnapshotValues::list() {
  std::vector<SnapshotValue> all;
  for (auto& entry : entries_) {
    std::visit([&](auto& value) { all.emplace_back(entry.name, &value); }, entry.value);
  }
  return all;
}

void SnapshotValues::read() {
  for (auto& entry : entries_) read(entry);
}

void SnapshotValues::read(Entry& entry) {
  const auto dict = values_.cast<py::dict>();
  const auto key = py::str(entry.name);
  if (!dict.contains(key)) {
    throw UsageError("snapshot", format("the value '{}' is no longer in values", entry.name),
                     "keep it there as long as snapshots are made");
  }
  const py::object object = dict[key];
  if (entry.has_state) {
    auto bytes = state_bytes(object);
    if (!entry.is_checked) check_state_bytes(entry.name, bytes);
    entry.is_checked = true;
    std::get<torch::Tensor>(entry.value) = bytes;
    return;
  }
  auto now = value_of(entry.name, object);
  if (auto* const number = std::get_if<double>(&entry.value); number && is_number(object)) {
    *number = number_of(object);
  } else if (auto* const numbers = std::get_if<std::vector<double>>(&entry.value);
             numbers && std::holds_alternative<std::vector<int64_t>>(now)) {
    const auto& whole = std::get<std::vector<int64_t>>(now);
    numbers->assign(whole.begin(), whole.end());
  } else if (auto* const whole = std::get_if<std::vector<int64_t>>(&entry.value);
             whole && py::len(object) == 0) {
    whole->clear();
  } else if (now.index() == entry.value.index()) {
    std::visit(
        [&](auto& value) { value = std::get<std::remove_reference_t<decltype(value)>>(now); },
        entry.value);
  } else {
    throw UsageError("snapshot",
                     format("the value '{}' is {} now, and was of another type when the snapshots "
                            "were made",
                            entry.name, type_name(object)),
                     "begin with a value of the type that it will have: 0.0 for a loss");
  }
}

void SnapshotValues::write() {
  for (auto& entry : entries_) {
    const auto key = py::str(entry.name);
    auto dict = values_.cast<py::dict>();
    if (entry.has_state) {
      const auto& bytes = std::get<torch::Tensor>(entry.value);
      if (bytes.defined()) set_state_bytes(entry.name, dict[key], bytes);
      continue;
    }
    std::visit([&](const auto& value) { dict[key] = py::cast(value); }, entry.value);
  }
}

}  // namespace fleet::python
