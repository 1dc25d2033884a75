// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/process_setup.h"

#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <thread>

#include <ATen/Parallel.h>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/process/cpu_limit.h"
#include "fleet/core/process/environment.h"
#include "fleet/core/process/uncaught.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"

namespace fleet {
namespace {

// A load that no one notices: daemons, and the average of what ended within the last minute.
constexpr double kSpareLoad = 0.5;

// glibc maps blocks above 32 MB and unmaps them on free, so that every large activation is faulted
// in anew in each step. With these limits freed blocks stay in the heap and are used again.
bool keep_pages() {
  if (!environment_switch("FLEET_KEEP_PAGES", true,
                          "0: malloc as it is; 1, or unset: freed pages stay with the process")) {
    return false;
  }
  constexpr int kBytes = 1 << 30;
  return mallopt(M_MMAP_THRESHOLD, kBytes) == 1 && mallopt(M_TRIM_THRESHOLD, kBytes) == 1;
}

// The first of OpenMP's list: "4", or "4,2" where teams nest.
int threads_of(std::string_view text) {
  const auto first = text.substr(0, text.find(','));
  int number = 0;
  const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), number);
  if (error == std::errc() && end == first.data() + first.size() && number > 0) return number;
  throw UsageError("environment", format("OMP_NUM_THREADS='{}' is not a number of threads", text),
                   "give a whole number above 0, or unset it: then the ranks share the cores");
}

}  // namespace

std::optional<int> chosen_threads() {
  const char* told = std::getenv("OMP_NUM_THREADS");
  if (told == nullptr) return std::nullopt;
  return threads_of(told);
}

bool is_wait_policy_chosen() {
  return std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
}

std::string wait_policy_advice(int threads, int cores, double load) {
  if (threads < 2 || threads + load <= cores + kSpareLoad || is_wait_policy_chosen()) return "";
  return format(
      "others use about {:.1f} of the {} cores, and OpenMP's threads spin while they wait for each "
      "other: training may take several times as long. Start the program with fleetrun, or with "
      "GOMP_SPINCOUNT={}",
      std::min<double>(load, cores), cores, kSpinCount);
}

int available_cores(const std::string& root) {
  std::array<cpu_set_t, 16> set{};  // room for 16,384
  const int cores = sched_getaffinity(0, sizeof(set), set.data()) == 0
                        ? CPU_COUNT_S(sizeof(set), set.data())
                        : static_cast<int>(std::thread::hardware_concurrency());
  const auto limit = cpu_limit(root);
  const auto allowed = limit ? static_cast<int>(std::ceil(limit->cores)) : cores;
  return std::max(1, std::min(cores, allowed));
}

std::string set_up_process(int local_ranks) {
  handle_uncaught_exceptions();
  ignore_file_size_signal();
  const int cores = available_cores();
  std::string threads;
  if (const auto chosen = chosen_threads()) {
    at::set_num_threads(*chosen);
    threads = format("{} per rank (OMP_NUM_THREADS)", plural(*chosen, "thread"));
  } else {
    const int number = std::max(1, cores / std::max(1, local_ranks));
    at::set_num_threads(number);
    threads = format("{} per rank ({} / {} here)", plural(number, "thread"), plural(cores, "core"),
                     local_ranks);
  }
  double load = 0;
  if (::getloadavg(&load, 1) != 1) load = 0;
  const auto advice = wait_policy_advice(at::get_num_threads(), cores, load);
  if (!advice.empty()) log::info("threads", advice);
  return threads + (keep_pages() ? ", malloc keeps freed pages" : ", malloc as it is");
}

}  // namespace fleet
