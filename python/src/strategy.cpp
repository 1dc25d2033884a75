// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <algorithm>

#include "fleet/core/options/options_json.h"
#include "fleet/train/distributed_strategy.h"

#include "bindings.h"

namespace fleet::python {
namespace {

py::object value_of(OptionsView options, const Field& field) {
  if (!field.nested()) {
    return std::visit([](const auto& value) -> py::object { return py::cast(value); },
                      field.get(options.object));
  }
  py::dict result;
  const auto inner = field.view(options.object);
  for (const auto& each : inner.list->fields) {
    result[py::str(std::string(each.name))] = value_of(inner, each);
  }
  return result;
}

const Field* find(std::string_view name) {
  const auto& fields = fields_of(static_cast<const DistributedStrategy*>(nullptr)).fields;
  const auto place = std::ranges::find(fields, name, &Field::name);
  return place == fields.end() ? nullptr : &*place;
}

py::object get(const DistributedStrategy& self, const std::string& name) {
  const auto* const field = find(name);
  if (!field) throw py::attribute_error(name + " is no field of DistributedStrategy");
  return value_of(self, *field);
}

// Through JSON, whose reader knows types, limits and the nearest of the names.
void set(DistributedStrategy& self, const std::string& name, const py::object& value) {
  auto changed = self;
  if (const auto* const field = find(name); field && field->nested()) {
    // Configs are replaced, not merged.
    const DistributedStrategy defaults;
    const auto from = leaves(field->view(&defaults));
    const auto to = leaves(field->ref(&changed));
    for (size_t i = 0; i < to.size(); ++i) to[i].field->set(to[i].owner, from[i].value());
  }
  py::dict one;
  one[py::str(name)] = value;
  const auto text = py::module_::import("json").attr("dumps")(one).cast<std::string>();
  read_json(changed, text, "strategy." + name);
  self = changed;
}

}  // namespace

void bind_strategy(py::module_& m) {
  py::class_<DistributedStrategy>(m, "DistributedStrategy", R"(
How a training is spread, merged, scaled and kept in memory: the guide's switches, each with a
dictionary of configs. docs/strategy.md has them all.

    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    strategy.recompute = True
    strategy.recompute_configs = {"checkpoints": names, "enable_offload": False}

An unknown name or a value out of its limits is an error that says what would do.
)")
      .def(py::init<>())
      .def("__getattr__", &get)
      .def("__setattr__", &set)
      .def("__dir__",
           [](const DistributedStrategy& self) {
             std::vector<std::string> names{"save", "to_json"};
             for (const auto& field : fields_of(&self).fields) names.emplace_back(field.name);
             return names;
           })
      .def_static("load", &DistributedStrategy::load, py::arg("file"), "From a JSON file.")
      .def("save", &DistributedStrategy::save, py::arg("file"), "To a JSON file.")
      .def("to_json", &DistributedStrategy::to_json, "What differs from the defaults.")
      .def("__eq__",
           [](const DistributedStrategy& a, const DistributedStrategy& b) { return a == b; })
      .def("__repr__", [](const DistributedStrategy& self) { return self.overview(); });
}

}  // namespace fleet::python
