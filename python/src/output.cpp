// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fleet/core/log.h"
#include "fleet/core/process/standard_output.h"

#include "bindings.h"
#include "gil.h"

namespace fleet::python {
namespace {

struct Stream {
  int fd;
  const char* name;
  const char* original;  // what it was when Python started
};
constexpr std::array<Stream, 2> kStreams = {
    {{STDOUT_FILENO, "stdout", "__stdout__"}, {STDERR_FILENO, "stderr", "__stderr__"}}};

struct Line {
  const Stream* stream;
  std::string text;
};

struct Lines {
  std::mutex mutex;
  std::vector<Line> kept;
};

Lines& lines() {
  static auto* const all = new Lines();  // threads may print while static objects are destroyed
  return *all;
}

std::array<std::atomic<bool>, kStreams.size()> g_redirected{};
std::atomic<bool> g_scheduled{false};
std::atomic<bool> g_ended{false};  // Python is about to
thread_local bool t_passes = false;

// The process's own, perhaps in another encoding.
bool is_own(const Stream& stream) {
  PyObject* const now = PySys_GetObject(stream.name);  // borrowed
  if (!now || now == Py_None || now == PySys_GetObject(stream.original)) return true;
  const auto object = py::reinterpret_borrow<py::object>(now);
  try {
    return py::isinstance(object, py::module_::import("io").attr("TextIOWrapper")) &&
           object.attr("fileno")().cast<int>() == stream.fd;
  } catch (py::error_already_set&) {
    return false;  // it has no descriptor
  }
}

void pass_on(const Line& line) {
  t_passes = true;
  write_text(line.stream->fd, line.text);
  t_passes = false;
}

void write(const Line& line) {
  if (is_own(*line.stream)) return pass_on(line);
  const auto stream = py::reinterpret_borrow<py::object>(PySys_GetObject(line.stream->name));
  try {
    stream.attr("write")(py::str(line.text));
    stream.attr("flush")();
  } catch (py::error_already_set&) {
    pass_on(line);  // it is closed, say
  }
}

int flush_pending(void* /*argument*/) {
  flush_lines();
  return 0;
}

// The sink of write_text. Empty text only asks.
bool keep(int fd, std::string_view text) {
  if (t_passes || g_ended || Py_IsInitialized() == 0) return false;
  for (size_t i = 0; i < kStreams.size(); ++i) {
    if (kStreams[i].fd != fd) continue;
    if (PyGILState_Check() == 1) look_at_streams();
    if (!g_redirected[i]) return false;
    if (text.empty()) return true;
    {
      const std::scoped_lock lock(lines().mutex);
      lines().kept.push_back({&kStreams[i], std::string(text)});
    }
    if (!g_scheduled.exchange(true)) Py_AddPendingCall(&flush_pending, nullptr);
    return true;
  }
  return false;
}

}  // namespace

void look_at_streams() {
  for (size_t i = 0; i < kStreams.size(); ++i) g_redirected[i] = !is_own(kStreams[i]);
}

void flush_lines() {
  g_scheduled = false;
  std::vector<Line> kept;
  {
    const std::scoped_lock lock(lines().mutex);
    kept.swap(lines().kept);
  }
  for (const auto& line : kept) write(line);
}

void bind_output(py::module_& m) {
  set_text_sink(&keep);
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    flush_lines();
    g_ended = true;
  }));

  // For tests.
  auto testing = m.def_submodule("testing", "What tests look at.");
  testing.def("warn", [](const std::string& text) { log::warn_here("test", text); });
  testing.def(
      "print_from_a_thread",
      [](const std::string& text) { std::thread([&] { log::info_here("test", text); }).join(); },
      Release());
}

}  // namespace fleet::python
