// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/doctor_machine.h"

#include <fcntl.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <clocale>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "fleet/core/error.h"
#include "fleet/core/process/cpu_limit.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/process/memory_limit.h"
#include "fleet/core/process/process_setup.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"
#include "fleet/core/torch/cpu_features.h"
#include "fleet/ops/update/update_kernels.h"
#include "fleet/precision/low_precision_speed.h"

namespace fleet::tool {
namespace {

namespace fs = std::filesystem;
using State = Finding::State;

// The value of the first line "name<blanks>: value".
std::string line_of(const fs::path& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == line.npos || !line.starts_with(name)) continue;
    if (line.substr(name.size(), colon - name.size()).find_first_not_of(" \t") != line.npos)
      continue;
    const auto begin = line.find_first_not_of(" \t", colon + 1);
    return begin == line.npos ? "" : line.substr(begin);
  }
  return "";
}

bool has_word(const std::string& words, const std::string& word) {
  return (" " + words + " ").find(" " + word + " ") != std::string::npos;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "OMP_NUM_THREADS=2, GOMP_SPINCOUNT=3000"
std::string set_variables(std::initializer_list<const char*> names) {
  std::string text;
  for (const char* name : names) {
    const auto value = environment(name);
    if (!value.empty()) text += format("{}{}={}", text.empty() ? "" : ", ", name, value);
  }
  return text;
}

double load_of(const std::string& root) {
  double load = 0;
  return std::ifstream(fs::path(root) / "proc/loadavg") >> load ? load : 0;
}

// As a rank opens what another rank of its machine offers. The child calls nothing but the kernel.
bool another_process_opens(int memory) {
  const auto path = format("/proc/{}/fd/{}", ::getpid(), memory);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::open(path.c_str(), O_RDWR | O_CLOEXEC) >= 0 ? 0 : 1);
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

}  // namespace

Finding cpu_finding(const std::string& root) {
  const auto file = fs::path(root) / "proc/cpuinfo";
  auto model = line_of(file, "model name");
  if (model.empty()) model = "a CPU without a name in /proc/cpuinfo";
  const auto flags = line_of(file, "flags");
  if (flags.empty()) {
    return {State::kAdvice, "cpu", format("{}, not x86-64", model),
            "expect the portable kernels: Fleet has others for x86-64 only"};
  }
  std::string has, lacks;
  const auto note = [&](const char* name, bool is_there) {
    auto& list = is_there ? has : lacks;
    list += format("{}{}", list.empty() ? "" : ", ", name);
  };
  const bool has_avx2 = has_word(flags, "avx2") && has_word(flags, "fma");
  note("AVX2", has_avx2);
  note("AVX-512", has_word(flags, "avx512f") && has_word(flags, "avx512bw") &&
                      has_word(flags, "avx512vl") && has_word(flags, "avx512dq"));
  note("AVX-512 BF16", has_word(flags, "avx512_bf16"));
  note("AMX BF16", has_word(flags, "amx_bf16"));
  const auto found =
      format("{}: {}{}{}", model, has.empty() ? "" : "has " + has,
             has.empty() || lacks.empty() ? "" : "; ", lacks.empty() ? "" : "no " + lacks);
  if (!has_avx2) {
    return {State::kAdvice, "cpu", found,
            "training takes several times as long without AVX2 and FMA; in a virtual machine ask "
            "for the host's CPU model"};
  }
  return {State::kOk, "cpu", found};
}

Finding kernels_finding() {
  const auto libtorch = format("LibTorch {}: {}", TORCH_VERSION, at::get_cpu_capability());
  const auto set = set_variables({"FLEET_CPU", "ATEN_CPU_CAPABILITY"});
  try {
    const auto found = format("Fleet: {}; {}{}", ops::instruction_set(), libtorch,
                              set.empty() ? "" : format(" ({})", set));
    if (set.empty()) return {State::kOk, "kernels", found};
    return {State::kAdvice, "kernels", found,
            "unset the variable, unless other kernels than the best are wanted"};
  } catch (const Error&) {
    return {State::kProblem, "kernels",
            format("{}, which this CPU or build does not have; {}", set, libtorch),
            "unset FLEET_CPU, or set it to generic, avx2, avx512 or avx512_bf16"};
  }
}

Finding bf16_finding() {
  const double slowdown = precision::low_precision_slowdown(torch::kBFloat16);
  const auto found = format("a matrix product takes {:.2f} times as long as in fp32", slowdown);
  if (!compat::amx_workaround().empty()) {
    return {State::kAdvice, "bf16", format("{}; {}", found, compat::amx_workaround()),
            "nothing to do for programs of Fleet; set the variable for other programs of PyTorch"};
  }
  if (precision::low_precision_warning(torch::kBFloat16)) {
    return {State::kAdvice, "bf16", found,
            "leave amp off here unless memory is what is short: it saves memory, not time"};
  }
  return {State::kOk, "bf16", found};
}

Finding cores_finding(const std::string& root) {
  const auto online = ::sysconf(_SC_NPROCESSORS_ONLN);
  const int usable = available_cores(root);
  const double load = load_of(root);
  const auto limit = cpu_limit(root);
  auto found = format("{} of {} cores, load {:.1f}", usable, online, load);
  if (limit && limit->cores < static_cast<double>(online)) {
    found += format("; {} leaves time for {:.1f}", limit->source, limit->cores);
    if (limit->cores < usable) {
      return {State::kAdvice, "cores", found,
              format("ask for whole cores: {} threads share {:.1f}, and all of them stop when the "
                     "time of a period is used up",
                     usable, limit->cores)};
    }
  }
  if (load > usable + 0.5) {
    return {State::kAdvice, "cores", found,
            "other programs use the cores too: ranks wait for the slowest; end them, or take "
            "another machine"};
  }
  return {State::kOk, "cores", found};
}

Finding memory_finding(const std::string& root) {
  const auto limit = memory_limit(root);
  int64_t kib = 0;
  std::istringstream(line_of(fs::path(root) / "proc/meminfo", "MemAvailable")) >> kib;
  const auto available = kib * 1024;
  const auto found = format("{} ({}), {} available on the machine", byte_size_text(limit.bytes),
                            limit.source, byte_size_text(available));
  constexpr int64_t kLittle = int64_t{1} << 30;
  if (limit.bytes < kLittle) {
    return {State::kProblem, "memory", found,
            "give the job more memory (sbatch --mem, docker --memory, resources.limits.memory): "
            "LibTorch alone takes some 300 MB in each rank"};
  }
  if (available < std::max(kLittle, limit.bytes / 10)) {
    return {State::kAdvice, "memory", found,
            "end what takes the memory, or give training a budget: --memory_budget 60%"};
  }
  return {State::kOk, "memory", found};
}

Finding huge_pages_finding(const std::string& root) {
  std::string modes;
  std::ifstream file(fs::path(root) / "sys/kernel/mm/transparent_hugepage/enabled");
  std::getline(file, modes);
  const auto begin = modes.find('['), end = modes.find(']');
  if (begin == modes.npos || end == modes.npos) {
    return {State::kOk, "huge pages", "this kernel has no transparent ones"};
  }
  const auto mode = modes.substr(begin + 1, end - begin - 1);
  const auto found = format("transparent_hugepage is {}", mode);
  if (mode == "never") {
    return {State::kAdvice, "huge pages", found,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): Fleet asks for "
            "them where it has large tensors"};
  }
  return {State::kOk, "huge pages", found};
}

Finding openmp_finding(const std::string& root) {
  const int cores = available_cores(root);
  const int threads = at::get_num_threads();
  const auto set = set_variables({"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT",
                                  "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"});
  const auto found = format("{} thread{} on {} cores; {}", threads, threads == 1 ? "" : "s", cores,
                            set.empty() ? "nothing set, fleetrun chooses" : set);
  bool is_chosen = false;
  try {
    is_chosen = chosen_threads().has_value();
  } catch (const UsageError&) {
    return {State::kProblem, "openmp",
            format("OMP_NUM_THREADS='{}' is not a number of threads",
                   printable(environment("OMP_NUM_THREADS"))),
            "set it to a whole number above 0, or unset it: programs refuse to start"};
  }
  if (is_chosen && threads > cores) {
    return {State::kAdvice, "openmp", found,
            format("unset OMP_NUM_THREADS, or set it to {}: threads beyond the cores wait for "
                   "each other",
                   cores)};
  }
  const auto bind = environment("OMP_PROC_BIND");
  if ((!bind.empty() && bind != "false" && bind != "FALSE") ||
      !set_variables({"GOMP_CPU_AFFINITY", "KMP_AFFINITY"}).empty()) {
    return {State::kAdvice, "openmp", found,
            "with several ranks on a machine, unset what binds threads, unless the launcher gives "
            "each rank cores of its own: all ranks would run on the same ones"};
  }
  const auto advice = wait_policy_advice(threads, cores, load_of(root));
  if (!advice.empty()) return {State::kAdvice, "openmp", found, advice};
  return {State::kOk, "openmp", found};
}

Finding shared_memory_finding() {
  std::string shm;
  struct statvfs room {};
  if (::statvfs("/dev/shm", &room) == 0) {
    shm = format("; /dev/shm has {} free, which Fleet does not use",
                 byte_size_text(static_cast<int64_t>(room.f_bavail * room.f_frsize)));
  }
  const char* name = "shared memory";
  if (environment("FLEET_SHARED_MEMORY") == "0") {
    return {State::kAdvice, name, "switched off by FLEET_SHARED_MEMORY=0" + shm,
            "unset it: ranks of one machine add up gradients through sockets, about three times "
            "slower"};
  }
  const Descriptor memory(::memfd_create("fleet-doctor", MFD_CLOEXEC));
  constexpr int64_t kBytes = 1 << 20;
  if (memory.get() < 0 || ::ftruncate(memory.get(), kBytes) != 0 ||
      !another_process_opens(memory.get())) {
    return {State::kAdvice, name, "ranks cannot open each other's memory" + shm,
            "let processes of one user see each other under /proc (no hidepid, the same user and "
            "pid namespace for all ranks): sums go through sockets otherwise"};
  }
  return {State::kOk, name, "ranks of this machine can all-reduce gradients in it" + shm};
}

Finding terminal_finding() {
  winsize size{};
  const bool is_terminal =
      ::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  const auto wanted = set_variables({"LC_ALL", "LC_CTYPE", "LANG"});
  const auto found =
      format("{}; {}",
             is_terminal ? format("a terminal of {} columns ({})", size.ws_col, environment("TERM"))
                         : "no terminal: plain lines",
             wanted.empty() ? "no locale set" : wanted);
  const auto locale = ::newlocale(LC_CTYPE_MASK, "", nullptr);
  if (locale == nullptr) {
    return {State::kAdvice, "terminal", found,
            "this locale is not installed; set LANG=C.UTF-8 where texts look wrong"};
  }
  const std::string codeset = ::nl_langinfo_l(CODESET, locale);
  ::freelocale(locale);
  if (is_terminal && codeset != "UTF-8") {
    return {State::kAdvice, "terminal", format("{} ({})", found, codeset),
            "set LANG=C.UTF-8: names of files and texts are printed as UTF-8"};
  }
  return {State::kOk, "terminal", found};
}

std::vector<Finding> machine_findings(const std::string& root) {
  return {cpu_finding(root),    kernels_finding(),       bf16_finding(),
          cores_finding(root),  memory_finding(root),    huge_pages_finding(root),
          openmp_finding(root), shared_memory_finding(), terminal_finding()};
}

}  // namespace fleet::tool
