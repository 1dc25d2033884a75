// SPDX-License-Identifier: Apache-2.0
#include "state_bytes.h"

#include <cstring>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::python {
namespace {

std::string first_line(const py::error_already_set& error) {
  const std::string text = py::str(error.value());
  return text.substr(0, text.find('\n'));
}

py::object loaded(const torch::Tensor& bytes) {
  const auto torch = py::module_::import("torch");
  const auto held = bytes.contiguous();
  const auto stream = py::module_::import("io").attr("BytesIO")(py::bytes(
      static_cast<const char*>(held.const_data_ptr()), static_cast<size_t>(held.numel())));
  return torch.attr("load")(stream, py::arg("weights_only") = true,
                            py::arg("map_location") = "cpu");
}

}  // namespace

torch::Tensor state_bytes(const py::object& object) {
  const auto stream = py::module_::import("io").attr("BytesIO")();
  const auto torch = py::module_::import("torch");
  torch.attr("save")(object.attr("state_dict")(), stream);
  const py::buffer view(stream.attr("getbuffer")());
  const auto info = view.request();
  auto bytes = torch::empty({info.size}, torch::kByte);
  std::memcpy(bytes.mutable_data_ptr(), info.ptr, static_cast<size_t>(info.size));
  return bytes;
}

void check_state_bytes(const std::string& name, const torch::Tensor& bytes) {
  try {
    loaded(bytes);
  } catch (const py::error_already_set& error) {
    throw UsageError("snapshot",
                     format("the state of '{}' holds more than tensors, numbers, texts and "
                            "containers of them, so that a snapshot could not be read: {}",
                            name, first_line(error)),
                     "leave other objects out of its state_dict(), or allow their types with "
                     "torch.serialization.add_safe_globals");
  }
}

void set_state_bytes(const std::string& name, const py::object& object,
                     const torch::Tensor& bytes) {
  try {
    object.attr("load_state_dict")(loaded(bytes));
  } catch (const py::error_already_set& error) {
    throw UsageError("snapshot",
                     format("load_state_dict() of '{}' does not take what the snapshot holds: {}",
                            name, first_line(error)),
                     "resume with what wrote it, or choose another snapshot_dir");
  }
}

}  // namespace fleet::python
