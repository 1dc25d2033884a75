// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "fleet/core/error.h"
#include "fleet/core/options/options_json.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/adam.h"
#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"
#include "fleet/optim/momentum.h"
#include "fleet/optim/sgd.h"
#include "fleet/snapshot/snapshots.h"
#include "fleet/train/distributed_optimizer.h"

#include "bindings.h"
#include "module_mirror.h"

namespace fleet::python {
namespace {

using Release = py::call_guard<py::gil_scoped_release>;

WeightedLoss weighted(const py::handle& pair) {
  const auto parts = pair.cast<py::sequence>();
  if (parts.size() != 2) {
    throw UsageError("loss", format("a weighted loss has {} parts", parts.size()),
                     "return (sum, weight)");
  }
  return {.sum = loss_tensor(parts[0]), .weight = parts[1].cast<double>()};
}

// A tensor is a mean; (sum, weight) a WeightedLoss; a list of such pairs LossTerms.
Loss loss_of(const py::object& result) {
  if (py::isinstance<py::tuple>(result)) return weighted(result);
  if (!py::isinstance<py::list>(result)) return loss_tensor(result);
  LossTerms terms;
  for (const auto& pair : result.cast<py::list>()) terms.terms.push_back(weighted(pair));
  return terms;
}

// Together with the optimizer of fleet.optim that it was made of, to whose param_groups schedulers
// of torch write. What cannot be followed is an error.
class PythonOptimizer : public DistributedOptimizer {
 public:
  PythonOptimizer(DistributedOptimizer optimizer, py::object source)
      : DistributedOptimizer(std::move(optimizer)), source_(std::move(source)), last_lr_(lr()) {
    for (const auto& [name, value] : source_.attr("defaults").cast<py::dict>()) {
      const bool is_followed = name.cast<std::string>() == "lr";
      if (!is_followed && group().contains(name)) options_[name] = group()[name];
    }
  }

  // Before each call. The rate is that of whoever has changed it last.
  void follow_source() {
    check_state(source_);
    for (const auto& [name, value] : options_) {
      const py::object now = group()[name];
      if (now.equal(value)) continue;
      throw UsageError("optim",
                       format("'{}' of the optimizer's param_groups is {} now, and strategies keep "
                              "using {}: of param_groups only the learning rate is read",
                              std::string(py::str(name)), std::string(py::str(now)),
                              std::string(py::str(value))),
                       "give it its value before fleet.distributed_optimizer");
    }
    const auto now = py::float_(group()["lr"]).cast<double>();
    if (now != last_lr_) {
      set_lr(now);
    } else if (lr() != now) {
      group()["lr"] = lr();
    }
    last_lr_ = lr();
  }
  double current_lr() {
    follow_source();
    return lr();
  }
  void change_lr(double value) {
    set_lr(value);
    group()["lr"] = last_lr_ = value;
  }
  // Schedulers of torch warn when they are called before it.
  UpdateReport stepped(UpdateReport report) {
    source_.attr("_opt_called") = true;
    return report;
  }

  static void check_state(const py::object& source) {
    const auto count = py::len(source.attr("state"));
    if (count == 0) return;
    throw UsageError("optim",
                     format("the optimizer has state of its own for {} parameters, from "
                            "load_state_dict or its own step(), which strategies do not use",
                            count),
                     "make it anew with the model, and leave steps to the distributed optimizer; "
                     "fleet.Snapshots saves and resumes its state");
  }

 private:
  py::dict group() const { return source_.attr("param_groups")[py::int_(0)]; }

  py::object source_;
  py::dict options_;
  double last_lr_;
};

// Calls `fn` for every leaf of tuples, lists, dictionaries, and of what wraps a dictionary, such as
// the BatchEncoding of a tokenizer; returns a tree of what it returns.
py::object map_leaves(const py::object& tree, const std::function<py::object(py::object)>& fn) {
  const auto user_dict = py::module_::import("collections").attr("UserDict");
  const py::cpp_function is_wrapped(
      [&](const py::object& node) { return py::isinstance(node, user_dict); });
  const py::cpp_function visit([&](const py::object& leaf) -> py::object {
    if (!py::isinstance(leaf, user_dict)) return fn(leaf);
    auto copy = py::module_::import("copy").attr("copy")(leaf);
    copy.attr("data") = map_leaves(leaf.attr("data"), fn);
    return copy;
  });
  return py::module_::import("torch.utils._pytree")
      .attr("tree_map")(visit, tree, py::arg("is_leaf") = is_wrapped);
}

// Tensors in a tree, with the samples in their first dimension.
class Batch {
 public:
  explicit Batch(py::object tree) : tree_(std::move(tree)) {
    map_leaves(tree_, [&](py::object leaf) {
      if (THPVariable_Check(leaf.ptr())) count(THPVariable_Unpack(leaf.ptr()));
      return leaf;
    });
    if (samples_ < 0) {
      throw UsageError("batch", "the batch has no tensor with samples",
                       "use minimize(loss) for what is not a tensor, or a tuple or dictionary of "
                       "them");
    }
  }

  int64_t size() const { return samples_; }
  // Called by C++, without the GIL.
  Batch slice(int64_t begin, int64_t end) const {
    const py::gil_scoped_acquire gil;
    return Batch(map_leaves(tree_, [&](py::object leaf) -> py::object {
      if (!THPVariable_Check(leaf.ptr())) return leaf;
      const auto& tensor = THPVariable_Unpack(leaf.ptr());
      return tensor.dim() == 0 ? leaf : py::cast(tensor.narrow(0, begin, end - begin));
    }));
  }
  const py::object& tree() const { return tree_; }

  ~Batch() {
    const py::gil_scoped_acquire gil;
    tree_ = py::object();
  }
  Batch(const Batch& other) : samples_(other.samples_) {
    const py::gil_scoped_acquire gil;
    tree_ = other.tree_;
  }
  Batch(Batch&&) = default;

 private:
  void count(const torch::Tensor& tensor) {
    if (tensor.dim() == 0) return;
    if (samples_ >= 0 && tensor.size(0) != samples_) {
      throw UsageError("batch",
                       format("tensors of the batch have {} and {} samples in their first "
                              "dimension",
                              samples_, tensor.size(0)),
                       "put the samples first in every tensor");
    }
    samples_ = tensor.size(0);
  }

  py::object tree_;
  int64_t samples_ = -1;
};

UpdateReport minimize(PythonOptimizer& self, const py::object& first, const py::object& loss) {
  self.follow_source();
  if (loss.is_none()) {
    const py::gil_scoped_release no_gil;
    return self.DistributedOptimizer::minimize([&]() -> Loss {
      const py::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      return loss_of(call_python(first));
    });
  }
  const Batch batch(first);
  const py::gil_scoped_release no_gil;
  return self.minimize(batch, [&](const Batch& micro_batch) -> Loss {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    return loss_of(call_python(py::cpp_function([&] { return loss(micro_batch.tree()); })));
  });
}

// `with optimizer.forward():`
class ForwardContext {
 public:
  ForwardContext(DistributedOptimizer& optimizer, int64_t samples)
      : optimizer_(optimizer), samples_(samples) {}
  void enter() { scope_.emplace(optimizer_.forward(samples_)); }
  void exit(const py::args& /*error*/) { scope_.reset(); }

 private:
  DistributedOptimizer& optimizer_;
  int64_t samples_;
  std::optional<DistributedOptimizer::ForwardScope> scope_;
};

template <typename T>
T at(const py::dict& group, const char* key) {
  return group[key].cast<T>();
}

// An optimizer of fleet.optim, as C++ has it.
std::unique_ptr<optim::Optimizer> optimizer_of(const py::object& python) {
  const auto own = py::module_::import("fleet.optim");
  const auto is = [&](const char* name) { return py::isinstance(python, own.attr(name)); };
  if (!py::hasattr(python, "model") || !py::isinstance(python, own.attr("_Optimizer"))) {
    throw UsageError("optim",
                     format("{} is no optimizer of fleet.optim",
                            std::string(py::str(py::type::of(python).attr("__name__")))),
                     "use fleet.optim.SGD, Momentum, Adam, AdamW, Lars or Lamb; any optimizer of "
                     "torch.optim works with fleet.MemoryBudget");
  }
  const auto groups = python.attr("param_groups").cast<py::list>();
  if (groups.size() != 1) {
    throw UsageError(
        "optim",
        format("the optimizer has {} param_groups, and strategies take one", groups.size()),
        "make it with the model alone: fleet.optim.Adam(model, lr=...)");
  }
  const auto group = groups[0].cast<py::dict>();
  PythonOptimizer::check_state(python);
  const auto model = mirror(python.attr("model"));
  const auto lr = py::float_(group["lr"]).cast<double>();
  if (is("Lamb")) {
    const auto betas = at<std::pair<double, double>>(group, "betas");
    return std::make_unique<optim::Lamb>(
        model, optim::LambOptions{.lr = lr,
                                  .beta1 = betas.first,
                                  .beta2 = betas.second,
                                  .epsilon = at<double>(group, "epsilon"),
                                  .lamb_weight_decay = at<double>(group, "lamb_weight_decay"),
                                  .exclude_from_weight_decay = at<std::vector<std::string>>(
                                      group, "exclude_from_weight_decay"),
                                  .rule = optim::lamb_rule(at<std::string>(group, "rule"))});
  }
  if (is("Lars")) {
    return std::make_unique<optim::Lars>(
        model, optim::LarsOptions{.lr = lr,
                                  .momentum = at<double>(group, "momentum"),
                                  .lars_coeff = at<double>(group, "lars_coeff"),
                                  .lars_weight_decay = at<double>(group, "lars_weight_decay"),
                                  .epsilon = at<double>(group, "epsilon"),
                                  .use_nesterov = at<bool>(group, "nesterov"),
                                  .exclude_from_weight_decay = at<std::vector<std::string>>(
                                      group, "exclude_from_weight_decay"),
                                  .rule = optim::lars_rule(at<std::string>(group, "rule"))});
  }
  const double decay = at<double>(group, "weight_decay");
  if (is("Adam")) {
    const auto betas = at<std::pair<double, double>>(group, "betas");
    const double eps = at<double>(group, "eps");
    if (is("AdamW")) {
      return std::make_unique<optim::AdamW>(model, optim::AdamWOptions{.lr = lr,
                                                                       .beta1 = betas.first,
                                                                       .beta2 = betas.second,
                                                                       .epsilon = eps,
                                                                       .weight_decay = decay});
    }
    return std::make_unique<optim::Adam>(model, optim::AdamOptions{.lr = lr,
                                                                   .beta1 = betas.first,
                                                                   .beta2 = betas.second,
                                                                   .epsilon = eps,
                                                                   .weight_decay = decay});
  }
  if (is("Momentum")) {
    return std::make_unique<optim::Momentum>(
        model, optim::MomentumOptions{.lr = lr,
                                      .momentum = at<double>(group, "momentum"),
                                      .weight_decay = decay,
                                      .use_nesterov = at<bool>(group, "nesterov")});
  }
  return std::make_unique<optim::SGD>(model, optim::SgdOptions{.lr = lr, .weight_decay = decay});
}

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

}  // namespace

void bind_training(py::module_& m) {
  py::class_<UpdateReport>(m, "UpdateReport", "What one call of minimize or step did.")
      .def_readonly("call", &UpdateReport::call, "calls of minimize so far")
      .def_readonly("update", &UpdateReport::update, "updates so far")
      .def_readonly("updated", &UpdateReport::updated, "whether the parameters were updated")
      .def_readonly("skipped", &UpdateReport::skipped,
                    "loss or gradient not finite: nothing changed but the loss scale")
      .def_readonly("micro_batches", &UpdateReport::micro_batches,
                    "of this rank, so far in this accumulation window")
      .def_readonly("loss", &UpdateReport::loss, "mean over the samples of all ranks")
      .def_readonly("weight", &UpdateReport::weight,
                    "of the loss: samples, or what the closure returned")
      .def_readonly("samples", &UpdateReport::samples, "of this rank; 0 with minimize(loss)")
      .def_readonly("lr", &UpdateReport::lr, "learning rate of the update")
      .def_readonly("loss_scale", &UpdateReport::loss_scale, "of amp; 1 without it")
      .def_readonly("synced", &UpdateReport::synced, "whether local SGD averaged the parameters")
      .def_readonly("stop", &UpdateReport::stop, "whether the training was asked to stop")
      .def_readonly("gradient_norm", &UpdateReport::gradient_norm,
                    "before clipping; None: not computed")
      .def_readonly("seconds", &UpdateReport::seconds, "that the call took")
      .def_readonly("exposed_communication_s", &UpdateReport::exposed_communication_s,
                    "waited for other ranks")
      .def_readonly("memory", &UpdateReport::memory, "a MemoryReport")
      .def("__repr__", [](const UpdateReport& self) {
        return format("UpdateReport(update={}, loss={:.6g}, lr={:.6g}, updated={})", self.update,
                      self.loss, self.lr, self.updated ? "True" : "False");
      });
  m.def("log_step", &log_step, py::arg("report"), "Prints the guide's step line on rank 0.");

  py::class_<ForwardContext>(m, "OptimizerForward", "Made by DistributedOptimizer.forward.")
      .def("__enter__", &ForwardContext::enter)
      .def("__exit__", &ForwardContext::exit);

  py::class_<PythonOptimizer>(m, "DistributedOptimizer", R"(
Trains one model as a strategy says. Made by fleet.distributed_optimizer.

    report = optimizer.minimize(batch, lambda part: loss_of(model(part["x"]), part["y"]))

All ranks make the same calls. The closure returns the mean loss, or (sum, weight), or a list of such
pairs. The model must not be moved, converted or loaded afterwards. Schedulers of torch may change the
learning rate in the param_groups of the optimizer that it was made of.
)")
      .def(
          "minimize",
          [](PythonOptimizer& self, const py::object& batch, const py::object& loss) {
            return self.stepped(minimize(self, batch, loss));
          },
          py::arg("batch"), py::arg("loss") = py::none(), R"(
minimize(batch, loss): forward, backward, reduce, update. `batch`: tensors in tuples, lists or
dictionaries, samples first; gradient merge and a lack of memory split it, and loss(part) gets the parts.
minimize(loss): the same for a closure without arguments; with gradient merge, k_steps calls make an
update.
)")
      .def(
          "forward",
          [](PythonOptimizer& self, int64_t samples) { return ForwardContext(self, samples); },
          py::keep_alive<0, 1>(), py::kw_only(), py::arg("samples") = 0,
          "Around the forward of a loss that goes to `backward`: amp, recompute.")
      .def(
          "backward",
          [](PythonOptimizer& self, const py::object& loss, bool is_last) {
            self.follow_source();
            const Loss value = loss_of(loss);
            const py::gil_scoped_release no_gil;
            return self.backward(value, {.is_last = is_last});
          },
          py::arg("loss"), py::kw_only(), py::arg("is_last") = false,
          "Adds the gradients of one micro-batch to the window.")
      .def(
          "step",
          [](PythonOptimizer& self) {
            self.follow_source();
            const auto step = [&] {
              const py::gil_scoped_release no_gil;
              return self.step();
            };
            return self.stepped(step());
          },
          "Reduces the gradients of the window, and updates.")
      .def("zero_grad", &DistributedOptimizer::zero_grad, "Forgets the window.")
      .def(
          "end_epoch",
          [](PythonOptimizer& self) {
            self.follow_source();
            const py::gil_scoped_release no_gil;
            return self.end_epoch();
          },
          "Updates with the micro-batches of an open window; with local SGD, averages.")
      .def("sync", &DistributedOptimizer::sync, Release(), "With local SGD, averages now.")
      .def_property("lr", &PythonOptimizer::current_lr, &PythonOptimizer::change_lr,
                    "learning rate")
      .def_property_readonly("updates", &DistributedOptimizer::updates, "so far")
      .def_property_readonly("skipped_updates", &DistributedOptimizer::skipped_updates,
                             "since loss or gradient was not finite")
      .def_property_readonly(
          "strategy", [](const PythonOptimizer& self) { return self.strategy(); },
          py::return_value_policy::move, "A copy of the one in force.");

  m.def(
      "distributed_optimizer",
      [](const py::object& optimizer, const DistributedStrategy* strategy) {
        auto own = optimizer_of(optimizer);
        const auto in_force = strategy ? *strategy : DistributedStrategy();
        const auto made = [&] {
          const py::gil_scoped_release no_gil;
          return fleet::distributed_optimizer(std::move(own), in_force);
        };
        return std::make_unique<PythonOptimizer>(made(), optimizer);
      },
      py::arg("optimizer"), py::arg("strategy") = nullptr, R"(
Turns an optimizer of fleet.optim, made with the model, into a distributed one: prints the strategy in
force, and gives all ranks the parameters and buffers of rank 0.

    optimizer = fleet.optim.Momentum(model, lr=0.1)
    optimizer = fleet.distributed_optimizer(optimizer, strategy)
)");

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

  py::class_<Snapshots>(m, "Snapshots", R"(
Saves a training periodically, and resumes it when constructed. docs/snapshots.md.

    snapshots = fleet.Snapshots(optimizer, "runs/a", save_every=100)
    for batch in data:
        optimizer.minimize(batch, loss)
        snapshots.after_update()
    snapshots.finish()
)")
      .def(py::init([](PythonOptimizer& optimizer, const std::string& dir, int64_t save_every,
                       int keep, PythonData* data) {
             return std::make_unique<Snapshots>(
                 optimizer,
                 SnapshotOptions{.snapshot_dir = dir, .save_every = save_every, .keep = keep},
                 data ? DataPosition(*data) : DataPosition());
           }),
           py::arg("optimizer"), py::arg("snapshot_dir"), py::kw_only(), py::arg("save_every") = 0,
           py::arg("keep") = 2, py::arg("data") = nullptr, py::keep_alive<1, 2>(),
           py::keep_alive<1, 6>(), Release())
      .def_property_readonly("resumed", &Snapshots::resumed,
                             "The updates of the snapshot that this run resumed from; None: none.")
      .def(
          "after_update", [](Snapshots& self) { self.after_update(); }, Release(),
          "Saves where one is due.")
      .def("after_epoch", &Snapshots::after_epoch, Release(),
           "Saves where one is due after an epoch.")
      .def("save", &Snapshots::save, Release(), "Saves now.")
      .def("finish", &Snapshots::finish, Release(),
           "Saves the end, and waits for what is being written.");
}

}  // namespace fleet::python
