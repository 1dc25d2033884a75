// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshots.h"

#include <pybind11/stl.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/core/options/options_json.h"
#include "fleet/core/text/format.h"

#include "gil.h"
#include "module_mirror.h"
#include "python_optimizer.h"
#include "snapshot_values.h"

namespace fleet::python {
namespace {

// Where a Python loop is in its data.
struct Position {
  int64_t epoch = 0;
  int64_t next_update = 0;
};

const FieldList& fields_of(const Position*) {
  static const FieldList list{
      .area = "data",
      .fields = {
          field<&Position::epoch>("epoch", "that the next batch is of").at_least(0),
          field<&Position::next_update>("next_update", "batches of it that are done").at_least(0)}};
  return list;
}

struct PythonData {
  Position position;
  Position state() const { return position; }
  void restore(const Position& state) { position = state; }
};

// Snapshots, and what they point to.
class PythonSnapshots {
 public:
  PythonSnapshots(const py::object& optimizers, const SnapshotOptions& options,
                  const py::object& data, const py::object& values, const py::object& models)
      : held_(py::make_tuple(optimizers, data, models)), values_(values) {
    SnapshotContents contents;
    const auto named = named_optimizers(optimizers);
    for (const auto& [name, optimizer] : named) {
      contents.optimizers.push_back({name, optimizer});
      if (auto* const groups = optimizer->several_groups()) {
        const auto prefix = name.empty() ? "" : name + ".";
        auto& own = rates_.emplace_back(
            Rates{prefix + "param_group_rates", optimizer, groups, groups->rates()});
        contents.values.emplace_back(own.name, &own.rates);
      }
    }
    if (!models.is_none()) {
      for (const auto& [name, model] : models.cast<py::dict>()) {
        contents.models.push_back(
            {name.cast<std::string>(), mirror(py::reinterpret_borrow<py::object>(model))});
      }
    }
    if (!data.is_none()) contents.data = DataPosition(data.cast<PythonData&>());
    for (auto& value : values_.list()) contents.values.push_back(std::move(value));
    // A scheduler may have set rates since the last update.
    contents.before_save = [this, named] {
      const py::gil_scoped_acquire gil;
      for (const auto& [name, optimizer] : named) optimizer->follow_source();
      for (auto& own : rates_) own.rates = own.groups->rates();
      values_.read();
    };
    values_.read();
    {
      const ReleaseGil no_gil;
      snapshots_ = std::make_unique<Snapshots>(options, std::move(contents));
    }
    if (!snapshots_->resumed()) return;
    values_.write();
    for (auto& own : rates_) own.groups->restore_rates(*own.optimizer, own.rates);
    for (const auto& [name, optimizer] : named) optimizer->follow_source();
  }

  Snapshots& cpp() { return *snapshots_; }

 private:
  struct Rates {
    std::string name;
    PythonOptimizer* optimizer;
    ParamGroups* groups;
    std::vector<double> rates;
  };

  static std::vector<std::pair<std::string, PythonOptimizer*>> named_optimizers(
      const py::object& optimizers) {
    std::vector<std::pair<std::string, PythonOptimizer*>> all;
    if (py::isinstance<PythonOptimizer>(optimizers)) {
      return {{"", &optimizers.cast<PythonOptimizer&>()}};
    }
    const bool is_dict = py::isinstance<py::dict>(optimizers);
    if (is_dict) {
      for (const auto& [name, optimizer] : optimizers.cast<py::dict>()) {
        if (!py::isinstance<PythonOptimizer>(optimizer)) break;
        all.emplace_back(name.cast<std::string>(), &optimizer.cast<PythonOptimizer&>());
      }
    }
    if (is_dict && !all.empty() && all.size() == py::len(optimizers)) return all;
    throw UsageError("snapshot",
                     format("snapshots are made of {}, and not of what "
                            "fleet.distributed_optimizer returns",
                            is_dict ? "a dictionary of something else" : type_name(optimizers)),
                     "fleet.Snapshots(optimizer, dir), or fleet.Snapshots({\"generator\": g, "
                     "\"discriminator\": d}, dir)");
  }

  py::tuple held_;
  SnapshotValues values_;
  std::deque<Rates> rates_;  // which stay where they are
  std::unique_ptr<Snapshots> snapshots_;
};

}  // namespace

void bind_snapshots(py::module_& m) {
  py::class_<PythonData>(m, "DataPosition", R"(
Where a loop is in its data, kept in snapshots: set next_update to the batches of the epoch that are
done, and epoch to the one they are of.
)")
      .def(py::init<>())
      .def_property(
          "epoch", [](const PythonData& self) { return self.position.epoch; },
          [](PythonData& self, int64_t epoch) { self.position.epoch = epoch; }, "of the next batch")
      .def_property(
          "next_update", [](const PythonData& self) { return self.position.next_update; },
          [](PythonData& self, int64_t n) { self.position.next_update = n; },
          "batches of the epoch that are done");

  py::class_<PythonSnapshots>(m, "Snapshots", R"(
Saves a training periodically, and resumes it when constructed. docs/snapshots.md.

    values = {"best_loss": float("inf"), "scheduler": scheduler}
    snapshots = fleet.Snapshots(optimizer, "runs/a", save_every=100, values=values)
    for batch in data:
        report = optimizer.minimize(batch, loss)
        scheduler.step()
        values["best_loss"] = min(values["best_loss"], report.loss)
        snapshots.after_update()
    snapshots.finish()

optimizer: what fleet.distributed_optimizer returned; or several by name, {"generator": g, ...}.
data: a DataPosition.
values: a dictionary of numbers, texts, lists of numbers, tensors, and objects with state_dict and
    load_state_dict, such as torch's schedulers. Each rank keeps its own. What was saved is in it
    after a resume.
models: a dictionary of models that no optimizer trains, such as averages of weights.
)")
      .def(py::init([](const py::object& optimizer, const std::string& dir, int64_t save_every,
                       int keep, const py::object& data, const py::object& values,
                       const py::object& models) {
             return std::make_unique<PythonSnapshots>(
                 optimizer,
                 SnapshotOptions{.snapshot_dir = dir, .save_every = save_every, .keep = keep}, data,
                 values, models);
           }),
           py::arg("optimizer"), py::arg("snapshot_dir"), py::kw_only(), py::arg("save_every") = 0,
           py::arg("keep") = 2, py::arg("data") = py::none(), py::arg("values") = py::none(),
           py::arg("models") = py::none())
      .def_property_readonly(
          "resumed", [](PythonSnapshots& self) { return self.cpp().resumed(); },
          "The updates of the snapshot that this run resumed from; None: none.")
      .def(
          "after_update", [](PythonSnapshots& self) { self.cpp().after_update(); }, Release(),
          "Saves where one is due.")
      .def(
          "after_epoch", [](PythonSnapshots& self) { self.cpp().after_epoch(); }, Release(),
          "Saves where one is due after an epoch.")
      .def(
          "save", [](PythonSnapshots& self) { self.cpp().save(); }, Release(), "Saves now.")
      .def(
          "finish", [](PythonSnapshots& self) { self.cpp().finish(); }, Release(),
          "Saves the end, and waits for what is being written.");
}

}  // namespace fleet::python
