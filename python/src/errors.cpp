// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/Exceptions.h>

#include "fleet/core/error.h"
#include "fleet/core/error_message.h"
#include "fleet/core/process/stop_request.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_exceeded.h"

#include "bindings.h"

namespace fleet::python {
namespace {

struct Types {
  py::object error, usage_error, stopped, out_of_memory;
};

Types& types() {
  static auto* const all = new Types();  // Python may end before static objects do
  return *all;
}

// Fleet's own, for all modules: an op or a hook of Fleet's may be called by a function of torch's.
void translate_own(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const UsageError& error) {
    PyErr_SetString(types().usage_error.ptr(), error.what());
  } catch (const Error& error) {
    PyErr_SetString(types().error.ptr(), error.what());
  } catch (const Stopped&) {
    PyErr_SetObject(types().stopped.ptr(), py::int_(Stopped::kExitCode).ptr());
  }
}

// Torch's, in functions of this module only.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const c10::OutOfMemoryError& error) {
    PyErr_SetString(types().out_of_memory.ptr(), error_message(error).c_str());
  } catch (const python_error&) {  // a Python exception that went through LibTorch
    torch::translate_exception_to_python(thrown);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(thrown);
  } catch (const torch::PyTorchError&) {
    torch::translate_exception_to_python(thrown);
  }
}

// Torch's own, or the error of a budget that passed through an op of a library built for LibTorch's
// stable ABI, which leaves only its text.
bool is_out_of_memory(const py::error_already_set& error) {
  if (error.matches(types().out_of_memory)) return true;
  return error.type().is(py::handle(PyExc_RuntimeError)) &&
         memory::tells_of_exceeded_budget(std::string(py::str(error.value())));
}

// What a c10::OutOfMemoryError became on its way through Python.
[[noreturn]] void throw_out_of_memory(const std::string& text) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  if (memory::tells_of_exceeded_budget(text)) throw memory::BudgetExceeded(here, text);
  throw c10::OutOfMemoryError(here, text);
}

// Out of memory in Python's hooks and functions comes out as C++ throws it. Without the GIL.
void run_autograd(const std::function<void()>& work) {
  std::string text;
  try {
    work();
    return;
  } catch (python_error& error) {
    const py::gil_scoped_acquire gil;
    error.restore();
    py::error_already_set python;
    if (!is_out_of_memory(python)) throw python;
    text = py::str(python.value());
  }
  throw_out_of_memory(text);
}

}  // namespace

py::object call_python(const py::object& fn) {
  std::string text;
  try {
    return fn();
  } catch (py::error_already_set& error) {
    if (!is_out_of_memory(error)) throw;
    text = py::str(error.value());
  }
  throw_out_of_memory(text);  // without the Python exception
}

std::string type_name(const py::object& object) {
  const auto type = py::type::of(object);
  const auto name = type.attr("__name__").cast<std::string>();
  const auto torch_optim = py::module_::import("torch.optim");
  const bool is_torch =
      py::hasattr(torch_optim, name.c_str()) && py::object(torch_optim.attr(name.c_str())).is(type);
  return is_torch ? "torch.optim." + name : name;
}

void bind_errors() {
  auto& all = types();
  const auto errors = py::module_::import("fleet._errors");
  all.error = errors.attr("Error");
  all.usage_error = errors.attr("UsageError");
  all.stopped = errors.attr("Stopped");
  all.out_of_memory = py::module_::import("torch").attr("OutOfMemoryError");
  py::register_exception_translator(&translate_own);
  py::register_local_exception_translator(&translate);
  compat::set_autograd_runner(&run_autograd);
}

}  // namespace fleet::python
